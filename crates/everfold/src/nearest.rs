//! What a mistyped name may have meant.

/// The known name that is nearest, if it is near.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let nearest = known.into_iter().map(|known| (distance(name, known), known)).min()?;
    (nearest.0 <= 1 + name.len() / 3).then_some(nearest.1)
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
    fn distance_counts_changes() {
        assert_eq!(distance("", ""), 0);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abc", "abd"), 1);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("balance", "balances"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn near_names_are_offered_and_far_ones_are_not() {
        assert_eq!(nearest("cart_total", ["balance", "cart_totals"]), Some("cart_totals"));
        assert_eq!(nearest("x", ["balance", "cart_totals"]), None);
    }
}
