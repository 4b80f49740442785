//! JSON compared by meaning, as PostgreSQL compares `jsonb`: spaces, the order of an object's
//! entries and the way a number or a string is written do not count.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Whether two JSON texts mean the same. Text that is not JSON is the same only as itself.
pub(super) fn same_json(one: &str, other: &str) -> bool {
    let (one, other) = (one.trim(), other.trim());
    if one == other {
        return true;
    }
    match (one.as_bytes().first(), other.as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => same_objects(one, other),
        (Some(b'['), Some(b'[')) => same_arrays(one, other),
        (Some(b'"'), Some(b'"')) => same_strings(one, other),
        (Some(b'-' | b'0'..=b'9'), Some(b'-' | b'0'..=b'9')) => same_numbers(one, other),
        _ => false,
    }
}

/// Of a name that stands twice, the last one counts.
fn same_objects(one: &str, other: &str) -> bool {
    type Object<'a> = BTreeMap<String, &'a RawValue>;
    let parsed =
        (serde_json::from_str::<Object<'_>>(one), serde_json::from_str::<Object<'_>>(other));
    let (Ok(one), Ok(other)) = parsed else {
        return false;
    };
    one.len() == other.len()
        && one.iter().zip(&other).all(|((name, value), (other_name, other_value))| {
            name == other_name && same_json(value.get(), other_value.get())
        })
}

fn same_arrays(one: &str, other: &str) -> bool {
    type Array<'a> = Vec<&'a RawValue>;
    let parsed = (serde_json::from_str::<Array<'_>>(one), serde_json::from_str::<Array<'_>>(other));
    let (Ok(one), Ok(other)) = parsed else {
        return false;
    };
    one.len() == other.len()
        && one.iter().zip(&other).all(|(value, other)| same_json(value.get(), other.get()))
}

fn same_strings(one: &str, other: &str) -> bool {
    let parsed =
        (serde_json::from_str::<Cow<'_, str>>(one), serde_json::from_str::<Cow<'_, str>>(other));
    matches!(parsed, (Ok(one), Ok(other)) if one == other)
}

/// Exactly, however large: 1, 1.0 and 10e-1 are one number, two that differ in the thirtieth
/// digit are two.
fn same_numbers(one: &str, other: &str) -> bool {
    match (Decimal::parse(one), Decimal::parse(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// A number as digits without zeros at either end, times a power of ten.
#[derive(PartialEq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// `None` if the exponent is beyond all use.
    fn parse(text: &str) -> Option<Decimal> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let kept = digits.trim_end_matches('0');
        let dropped = i64::try_from(digits.len() - kept.len()).ok()?;
        let exponent = i64::from(exponent) - i64::try_from(fraction.len()).ok()? + dropped;
        let digits = kept.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Decimal { negative: false, digits, exponent: 0 });
        }
        Some(Decimal { negative, digits, exponent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_is_only_written_differently_is_the_same() {
        for (one, other) in [
            (r#"{"a":1,"b":[true,null]}"#, "{ \"b\" : [ true, null ],\n\"a\" : 1 }"),
            ("1", "1.0"),
            ("100", "1e2"),
            ("-0", "0"),
            ("0.5", "5E-1"),
            ("12345678901234567890123", "12345678901234567890123.0"),
            (r#""A""#, r#""\u0041""#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#""😀""#, r#""\ud83d\ude00""#),
        ] {
            assert!(same_json(one, other), "{one} {other}");
        }
    }

    #[test]
    fn json_that_means_something_else_is_not() {
        for (one, other) in [
            ("1", "2"),
            ("1", "-1"),
            ("1", "\"1\""),
            ("10", "1"),
            ("12345678901234567890123", "12345678901234567890124"),
            ("[1,2]", "[2,1]"),
            ("[1]", "[1,1]"),
            (r#"{"a":1}"#, r#"{"a":1,"b":null}"#),
            (r#"{"a":1}"#, r#"{"b":1}"#),
            ("true", "false"),
            ("null", "0"),
            (r#""a""#, r#""A""#),
        ] {
            assert!(!same_json(one, other), "{one} {other}");
        }
    }
}
