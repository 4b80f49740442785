//! Whether two JSON values mean the same, however a database wrote them down.

use serde_json::{Number, Value};

/// Numbers are the same by what they are: a database writes `1e2` and `-0.0` in its own way.
pub(crate) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => same_number(left, right),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(a, b)| same(a, b))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, a)| right.get(name).is_some_and(|b| same(a, b)))
        }
        (left, right) => left == right,
    }
}

fn same_number(left: &Number, right: &Number) -> bool {
    left == right || ((left.is_f64() || right.is_f64()) && left.as_f64() == right.as_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_compared_by_value_and_objects_without_order() {
        assert!(same(
            &json!({ "a": [1.0, 1e16], "b": -0.0 }),
            &json!({ "b": 0, "a": [1, 10_000_000_000_000_000_u64] })
        ));
        assert!(!same(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
        assert!(!same(&json!({ "a": null }), &json!({})));
        assert!(!same(&json!("1"), &json!(1)));
    }
}
