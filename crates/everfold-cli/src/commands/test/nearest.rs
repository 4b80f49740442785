//! What a mistyped name may have meant.

/// The known name that is nearest, if it is near.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, known) = known.into_iter().map(|known| (distance(name, known), known)).min()?;
    (distance <= 1 + name.len() / 3).then_some(known)
}

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

/// Edit distance: how many characters must be added, taken away or changed.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in right.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_offered_and_far_ones_are_not() {
        assert_eq!(distance("given", "given"), 0);
        assert_eq!(distance("gven", "given"), 1);
        assert_eq!(nearest("cart_total", ["balance", "cart_totals"]), Some("cart_totals"));
        assert_eq!(nearest("x", ["balance", "cart_totals"]), None);
        assert_eq!(hint("x", ["balance", "cart_totals"]), "; there are balance, cart_totals");
        assert_eq!(hint("x", []), "; there are none");
    }
}
