use super::*;

fn added(quantity: u32) -> CartEvent {
    CartEvent::ItemAdded { sku: "TEA".to_owned(), quantity }
}

/// A log of one cart with three events, and what was acknowledged of it.
fn three() -> (Fold, Vec<Acknowledged>) {
    let mut fold = Fold::default();
    let mut acknowledged = Vec::new();
    for version in 1..=3 {
        let (id, cart, version) = (Uuid::now_v7(), StreamId::from("cart-1"), Version(version));
        fold.add(id, &cart, version, "ItemAdded", Some(added(2)));
        acknowledged.push(Acknowledged { id, cart, version });
    }
    (fold, acknowledged)
}

fn row(items: i64, history: &[&str]) -> CartRow {
    let history = history.iter().map(|entry| (*entry).to_owned()).collect();
    CartRow { cart: "cart-1".to_owned(), items, history }
}

const RIGHT: [&str; 3] = ["1 ItemAdded 2 TEA", "2 ItemAdded 2 TEA", "3 ItemAdded 2 TEA"];

#[test]
fn shop_that_adds_up_has_no_faults() {
    let (fold, acknowledged) = three();
    assert_eq!(fold.compare_acknowledged(&acknowledged), Faults::default());
    assert_eq!(fold.compare_carts(&[row(6, &RIGHT)]), Faults::default());
    assert_eq!(fold.compare_products(&[("TEA".to_owned(), 6)]), Faults::default());
}

#[test]
fn fault_in_a_read_model_is_counted_as_what_it_is() {
    let (fold, _) = three();
    let [one, two, three] = RIGHT;
    let found = |items, history: &[&str]| {
        let faults = fold.compare_carts(&[row(items, history)]);
        assert!(!faults.is_none());
        assert_eq!(faults.rows_that_differ, 1);
        (faults.lost, faults.doubled, faults.reordered, faults.invented)
    };
    assert_eq!(found(4, &[one, three]), (1, 0, 0, 0), "lost");
    assert_eq!(found(8, &[one, two, two, three]), (0, 1, 0, 0), "doubled");
    assert_eq!(found(6, &[one, three, two]), (0, 0, 1, 0), "reordered");
    assert_eq!(found(6, &[one, two, "3 ItemAdded 9 TEA"]), (1, 0, 0, 1), "another event");
    assert_eq!(found(7, &RIGHT), (0, 0, 0, 0), "a wrong sum");
}

#[test]
fn rows_that_are_missing_or_too_many_are_faults() {
    let (fold, _) = three();
    let none = fold.compare_carts(&[]);
    assert_eq!((none.lost, none.rows_that_differ), (3, 1));
    let twice = fold.compare_carts(&[row(6, &RIGHT), row(6, &RIGHT)]);
    assert_eq!(twice.rows_that_differ, 1);
    let strange = CartRow { cart: "cart-9".to_owned(), ..row(6, &RIGHT) };
    assert_eq!(fold.compare_carts(&[row(6, &RIGHT), strange]).rows_that_differ, 1);
    for wrong in [&[][..], &[("TEA", 5)], &[("TEA", 6), ("POT", 1)], &[("TEA", 6), ("TEA", 6)]] {
        let rows: Vec<_> = wrong.iter().map(|(sku, n)| ((*sku).to_owned(), *n)).collect();
        assert_eq!(fold.compare_products(&rows).rows_that_differ, 1, "{wrong:?}");
    }
}

#[test]
fn rows_that_both_have_found_count_once() {
    let faults = Faults { rows_that_differ: 3, ..Faults::default() };
    assert_eq!(faults.clone().with_verified(2).rows_that_differ, 3);
    assert_eq!(faults.with_verified(5).rows_that_differ, 5);
}

#[test]
fn log_that_differs_from_what_was_acknowledged_is_a_fault() {
    let (mut fold, mut acknowledged) = three();
    fold.log.swap(1, 2);
    assert_eq!(fold.compare_acknowledged(&acknowledged).reordered, 2, "reordered");
    fold.log.swap(1, 2);
    fold.log.push(fold.log[2].clone());
    assert_eq!(fold.compare_acknowledged(&acknowledged).doubled, 1, "doubled");
    fold.log.truncate(2);
    assert_eq!(fold.compare_acknowledged(&acknowledged).lost, 1, "lost");
    acknowledged.truncate(1);
    assert_eq!(fold.compare_acknowledged(&acknowledged).invented, 1, "never acknowledged");
    let mut elsewhere = three();
    elsewhere.1[1].version = Version(7);
    assert_eq!(elsewhere.0.compare_acknowledged(&elsewhere.1).reordered, 1, "another version");
}
