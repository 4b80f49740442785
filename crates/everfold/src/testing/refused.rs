//! Events that a projection refuses, and which of them a test expects.

use super::failure::Cause;

/// What is wrong with the refusals of a run: each must say what one of those expected says, and none
/// may be missing.
pub(super) fn differ(expected: &[String], found: &[String]) -> Option<Cause> {
    let says = |said: &str, part: &str| said.contains(part);
    if let Some(said) = found.iter().find(|said| !expected.iter().any(|part| says(said, part))) {
        let wanted = match expected {
            [] => String::new(),
            parts => format!("\n  expected one that says {}", quoted(parts)),
        };
        return Some(Cause::differs(format!("an event was refused: {said}{wanted}")));
    }
    if let Some(part) = expected.iter().find(|part| !found.iter().any(|said| says(said, part))) {
        let wanted = quoted(std::slice::from_ref(part));
        return Some(Cause::differs(format!(
            "no event was refused with what was expected\n  expected {wanted}"
        )));
    }
    (found.len() != expected.len()).then(|| {
        let (found, expected) = (found.len(), expected.len());
        Cause::differs(format!("{found} events were refused\n  expected are {expected}"))
    })
}

fn quoted(parts: &[String]) -> String {
    parts.iter().map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(expected: &[&str], found: &[&str]) -> Option<String> {
        let owned =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
        match differ(&owned(expected), &owned(found))? {
            Cause::Differs { said, .. } => Some(said),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_refusal_is_expected_and_each_expected_one_is_there() {
        assert_eq!(said(&[], &[]), None);
        assert_eq!(said(&["n"], &["no n"]), None);
        assert_eq!(said(&["b", "a"], &["a: 1", "b: 2"]), None);
        assert_eq!(said(&[], &["no n"]).unwrap(), "an event was refused: no n");
        let other = said(&["m"], &["no n"]).unwrap();
        assert_eq!(other, "an event was refused: no n\n  expected one that says \"m\"");
        assert!(said(&["n"], &[]).unwrap().ends_with("expected \"n\""));
        assert!(said(&["n"], &["no n", "no n"]).unwrap().starts_with("2 events were refused"));
        assert!(said(&["n", "no"], &["no n"]).unwrap().ends_with("expected are 2"));
    }
}
