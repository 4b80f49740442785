//! What a mistyped name may have meant.

pub(super) use everfold::__private::nearest;

/// `; did you mean "cart_totals"?`, or all that there are.
pub(super) fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match (nearest(name, known.iter().copied()), known.as_slice()) {
        (Some(meant), _) => format!("; did you mean \"{meant}\"?"),
        (None, []) => "; there are none".to_owned(),
        (None, [one]) => format!("; there is {one}"),
        (None, all) => format!("; there are {}", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_offered_and_far_ones_are_not() {
        let known = ["balance", "cart_totals"];
        assert_eq!(hint("cart_total", known), "; did you mean \"cart_totals\"?");
        assert_eq!(hint("x", ["balance", "cart_totals"]), "; there are balance, cart_totals");
        assert_eq!(hint("x", []), "; there are none");
    }
}
