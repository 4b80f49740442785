//! Which views there are to be, and what each shows when.

use std::collections::BTreeMap;

use crate::store::postgres::rebuild::layout::{
    Change, Column, Layout, Shape, View, is_ours, versioned,
};

fn columns(columns: &str) -> Vec<Column> {
    let column = |word: &str| {
        let (name, kind) = word.split_once(':').unwrap_or((word, "bigint"));
        Column { name: name.to_owned(), kind: kind.to_owned() }
    };
    columns.split(' ').map(column).collect()
}

/// Generations (id, version, columns of their table `t`), all of them whole but those that are added.
fn layout(generations: &[(i32, u32, &str)], active: i32) -> Layout {
    let shape = |(id, version, text): &(i32, u32, &str)| {
        let tables = BTreeMap::from([("t".to_owned(), columns(text))]);
        let home = format!("home_{id}");
        (*id, Shape { version: *version, home, is_unfinished: false, is_retired: false, tables })
    };
    let shapes = generations.iter().map(shape).collect();
    Layout { shapes, active: Some(active), ..Layout::default() }
}

fn adding(mut layout: Layout, generation: i32) -> Layout {
    layout.shapes.get_mut(&generation).unwrap().is_unfinished = true;
    layout.adding = Some(generation);
    layout
}

fn view(name: &str, text: &str, generations: &[i32], shown: &[&[i32]]) -> View {
    View {
        name: name.to_owned(),
        table: "t".to_owned(),
        columns: columns(text),
        generations: generations.to_vec(),
        shown: shown.iter().map(|ids| ids.to_vec()).collect(),
    }
}

/// The views after the changes, of which there are none left then.
fn settled(mut layout: Layout) -> (Vec<View>, Layout) {
    for change in layout.changes().unwrap() {
        let name = change.name().to_owned();
        layout.views.retain(|view| view.name != name);
        match change {
            Change::Create(view) | Change::Replace(view) | Change::Renew(view) => {
                layout.views.push(view);
            }
            Change::Drop(_) => {}
        }
    }
    layout.views.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(layout.changes().unwrap(), [], "it is done");
    (layout.views.clone(), layout)
}

#[test]
fn first_generation_is_shown_once_it_is_active() {
    let mut layout = adding(layout(&[(1, 1, "a b")], 1), 1);
    layout.active = None;
    let (views, mut layout) = settled(layout);
    assert_eq!(views, [view("t", "a b", &[1], &[&[1]])]);
    // After the switch, with nothing else there.
    (layout.active, layout.adding) = (Some(1), None);
    assert_eq!(settled(layout).0, [view("t", "a b", &[1], &[])]);
}

#[test]
fn same_columns_and_more_at_the_end_share_a_view() {
    for (new, all) in [("a b", "a b"), ("a b c", "a b c"), ("a", "a b")] {
        let mut layout = adding(layout(&[(1, 1, "a b"), (2, 2, new)], 1), 2);
        layout.views = vec![view("t", "a b", &[1], &[])];
        let (views, mut layout) = settled(layout);
        assert_eq!(views, [view("t", all, &[1, 2], &[&[1], &[2]])]);
        // Switched, and the old one is to go.
        layout.shapes.get_mut(&2).unwrap().is_unfinished = false;
        (layout.active, layout.adding, layout.removing) = (Some(2), None, Some(1));
        assert_eq!(settled(layout).0, [view("t", all, &[2], &[])]);
    }
}

#[test]
fn missing_columns_are_null_and_every_part_has_its_condition() {
    let mut layout = adding(layout(&[(1, 1, "a b"), (2, 2, "a b c:text")], 1), 2);
    layout.views = vec![view("t", "a b", &[1], &[])];
    let (views, layout) = settled(layout);
    assert_eq!(
        layout.query(&views[0], 7),
        "SELECT \"a\", \"b\", NULL::text AS \"c\" FROM \"home_1\".\"t\" WHERE (SELECT \
         p.active_generation FROM everfold.projections p WHERE p.id = 7) = ANY (ARRAY[1]) UNION ALL \
         SELECT \"a\", \"b\", \"c\" FROM \"home_2\".\"t\" WHERE (SELECT p.active_generation FROM \
         everfold.projections p WHERE p.id = 7) = ANY (ARRAY[2])"
    );
}

#[test]
fn other_columns_get_a_view_of_their_own_and_the_old_one_stays_until_it_is_removed() {
    let mut layout = adding(layout(&[(1, 1, "a b"), (2, 2, "a b:text")], 1), 2);
    layout.views = vec![view("t", "a b", &[1], &[])];
    let (views, mut layout) = settled(layout);
    let old = view("t", "a b", &[1], &[]);
    assert_eq!(views, [old.clone(), view("t_v2", "a b:text", &[2], &[&[2]])]);

    layout.shapes.get_mut(&2).unwrap().is_unfinished = false;
    (layout.active, layout.adding, layout.removing) = (Some(2), None, Some(1));
    let changes = layout.changes().unwrap();
    assert!(changes.contains(&Change::Renew(view("t", "a b:text", &[2], &[]))), "{changes:?}");
    let both = [view("t", "a b:text", &[2], &[]), view("t_v2", "a b:text", &[2], &[])];
    assert_eq!(settled(layout).0, both);
}

#[test]
fn old_view_goes_on_with_what_it_showed_also_where_it_has_several_parts() {
    let mut layout = adding(layout(&[(1, 1, "a"), (2, 1, "a"), (3, 2, "x")], 2), 3);
    layout.views = vec![view("t", "a", &[1, 2], &[&[1], &[2]])];
    let (views, mut layout) = settled(layout);
    let old = view("t", "a", &[1, 2], &[&[1], &[2, 3]]);
    assert_eq!(views, [old, view("t_v2", "x", &[3], &[&[3]])]);
    // The first one goes: the second is what is shown, whichever is active.
    layout.shapes.get_mut(&3).unwrap().is_unfinished = false;
    (layout.active, layout.adding, layout.removing) = (Some(3), None, Some(1));
    let (views, mut layout) = settled(layout);
    assert_eq!(views[0], view("t", "a", &[2], &[]));
    // The same version once more: it joins the view of its version.
    layout.shapes.remove(&1);
    layout.removing = None;
    let again =
        Shape { is_unfinished: true, home: "home_4".to_owned(), ..layout.shapes[&3].clone() };
    layout.shapes.insert(4, again);
    layout.adding = Some(4);
    let (views, _) = settled(layout);
    assert_eq!(views[0], view("t", "a", &[2], &[]));
    assert_eq!(views[1], view("t_v2", "x", &[3, 4], &[&[2, 3], &[4]]));
}

#[test]
fn table_that_only_one_of_them_has() {
    let mut layout = adding(layout(&[(1, 1, "a"), (2, 2, "a")], 1), 2);
    layout.shapes.get_mut(&1).unwrap().tables = BTreeMap::from([("old".to_owned(), columns("a"))]);
    let old = View { table: "old".to_owned(), ..view("old", "a", &[1], &[]) };
    layout.views = vec![old.clone()];
    let (views, mut layout) = settled(layout);
    assert_eq!(views, [old, view("t", "a", &[2], &[&[2]])]);
    layout.shapes.get_mut(&2).unwrap().is_unfinished = false;
    (layout.active, layout.adding, layout.removing) = (Some(2), None, Some(1));
    assert_eq!(settled(layout).0, [view("t", "a", &[2], &[])]);
}

#[test]
fn half_built_generation_that_was_left_in_a_view_is_never_shown_for_another() {
    let mut layout = adding(layout(&[(1, 1, "a"), (2, 1, "a"), (3, 2, "x")], 1), 3);
    layout.shapes.get_mut(&2).unwrap().is_unfinished = true;
    layout.views = vec![view("t", "a", &[1, 2], &[&[1], &[2]])];
    assert_eq!(settled(layout).0[0], view("t", "a", &[1, 2], &[&[1, 3], &[2]]));
}

#[test]
fn names_of_views_fit_the_limit_and_are_told_from_others() {
    let long = "x".repeat(63);
    assert_eq!(versioned(&long, 12).len(), 63);
    assert_eq!(versioned("carts", 2), "carts_v2");
    for (name, ours) in [("carts", true), ("carts_v2", true), ("carts_vip", false), ("v2", false)] {
        assert_eq!(is_ours(name, "carts"), ours, "{name}");
    }
    assert!(is_ours(&versioned(&long, 12), &long));
}

/// The rebuild that fills it then changes no view.
#[test]
fn spare_is_in_the_views_from_the_beginning_and_when_others_are_removed() {
    let mut layout = adding(layout(&[(1, 1, "x"), (2, 2, "a"), (3, 2, "a")], 2), 3);
    layout.views = vec![view("t", "x", &[1], &[&[1, 2]]), view("t_v2", "a", &[2], &[&[1, 2]])];
    layout.spare = Some(3);
    let (views, mut layout) = settled(layout);
    let both = view("t_v2", "a", &[2, 3], &[&[1, 2], &[3]]);
    assert_eq!(views, [view("t", "x", &[1], &[]), both.clone()]);
    (layout.spare, layout.coming) = (None, Some(3));
    assert_eq!(layout.changes().unwrap(), [], "nothing is left to do");

    (layout.spare, layout.coming, layout.adding) = (Some(3), None, None);
    layout.removing = Some(1);
    let (views, mut layout) = settled(layout);
    let both = [view("t", "a", &[2, 3], &[&[2], &[3]]), view("t_v2", "a", &[2, 3], &[&[2], &[3]])];
    assert_eq!(views, both);
    // Its tables are still there, but no snapshot in which it was active.
    layout.shapes.get_mut(&1).unwrap().is_retired = true;
    (layout.removing, layout.spare, layout.adding) = (None, None, Some(3));
    assert_eq!(layout.changes().unwrap(), []);
}

/// A removal between widening and the switch.
#[test]
fn target_that_is_not_in_a_view_is_thought_of_when_another_one_is_removed() {
    let mut layout = adding(layout(&[(1, 1, "a"), (2, 1, "a"), (3, 1, "a"), (4, 2, "x")], 3), 4);
    layout.views = vec![view("t", "a", &[1, 2, 3], &[&[1], &[2], &[3]])];
    let (_, mut layout) = settled(layout);
    (layout.adding, layout.coming, layout.removing) = (None, Some(4), Some(1));
    assert_eq!(settled(layout).0[0], view("t", "a", &[2, 3], &[&[2], &[3, 4]]));
}
