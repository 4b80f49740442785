//! Times as people say them.

use std::time::Duration;

/// A duration as it is given on the command line: seconds, or a number with ms, s, m or h.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a time: use seconds, or 200ms, 5s, 1m, 2h");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => number / 1_000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3_600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// A number of seconds in the unit that suits it.
pub(crate) fn shown(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1_000.0),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, milliseconds) in [
            ("0", 0),
            ("5", 5_000),
            ("1.5", 1_500),
            ("200ms", 200),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "-1", "5 days", "1e99h", "1.2.3"] {
            assert!(parse(text).unwrap_err().contains("use seconds"), "{text}");
        }
    }

    #[test]
    fn ages_have_a_unit_that_suits() {
        for (seconds, text) in [
            (0.0, "0 ms"),
            (0.25, "250 ms"),
            (59.6, "60 s"),
            (600.0, "10 min"),
            (86_400.0, "24 h"),
            (864_000.0, "10 days"),
        ] {
            assert_eq!(shown(seconds), text);
        }
    }
}
