//! Sizes as people write them.

/// A number of bytes as it is given on the command line: bytes, or a number with kB, MB, GB, KiB, MiB
/// or GiB.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let wrong = || format!("\"{text}\" is not a size: use bytes, or 512KiB, 256MiB, 1GiB");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let factor: u64 = match unit.trim_start() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let bytes = number * factor as f64;
    // Beyond this a size is a mistake, and would not fit.
    if bytes < 1.0 || bytes > (1_u64 << 50) as f64 {
        return Err(wrong());
    }
    Ok(bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("4096", 4_096),
            ("512KiB", 512 << 10),
            ("256MiB", 256 << 20),
            ("1.5GiB", 3 << 29),
            ("1 MB", 1_000_000),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "MiB", "12 cats", "-1MiB", "9999999GiB"] {
            assert!(parse(text).unwrap_err().contains("is not a size"), "{text}");
        }
    }
}
