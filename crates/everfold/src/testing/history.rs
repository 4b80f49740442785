//! The events of a test, and the orders in which they may as well have come.

use std::collections::HashMap;

use crate::{NewEvent, StreamId};

/// Events that are appended together.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) stream: StreamId,
    pub(super) events: Vec<NewEvent>,
    /// When they were recorded, if not now.
    pub(super) recorded_at: Option<jiff::Timestamp>,
}

/// Each event by itself.
pub(super) fn one_by_one(given: &[Given]) -> Vec<Given> {
    let single = |given: &Given| {
        let events = given.events.clone().into_iter();
        let (stream, recorded_at) = (given.stream.clone(), given.recorded_at);
        events.map(move |event| Given { stream: stream.clone(), events: vec![event], recorded_at })
    };
    given.iter().flat_map(single).collect()
}

/// Other orders of the same appends that keep the order within each stream and within each key:
/// streams that share a key are moved as one. `keys` has the keys of each append's events.
pub(super) fn other_orders(
    given: &[Given],
    keys: &[Vec<String>],
) -> Vec<(&'static str, Vec<Given>)> {
    let groups = groups(given, keys);
    if groups.len() < 2 {
        return Vec::new();
    }
    let pick = |order: Vec<usize>| order.into_iter().map(|at| given[at].clone()).collect();
    vec![
        ("with the last streams first", pick(groups.iter().rev().flatten().copied().collect())),
        ("with streams taking turns", pick(taking_turns(&groups))),
        ("with streams shuffled", pick(shuffled(&groups))),
    ]
}

/// The appends, by number, of streams that have a key in common, directly or through others.
fn groups(given: &[Given], keys: &[Vec<String>]) -> Vec<Vec<usize>> {
    let mut group_of: Vec<usize> = (0..given.len()).collect();
    let mut seen: HashMap<(bool, &str), usize> = HashMap::new();
    for (at, (append, keys)) in given.iter().zip(keys).enumerate() {
        let names = std::iter::once((true, append.stream.as_str()))
            .chain(keys.iter().map(|key| (false, key.as_str())));
        for name in names {
            let first = *seen.entry(name).or_insert(at);
            let (one, other) = (group_of[first], group_of[at]);
            let joined = one.min(other);
            for group in &mut group_of {
                if *group == one || *group == other {
                    *group = joined;
                }
            }
        }
    }
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); given.len()];
    for (at, group) in group_of.into_iter().enumerate() {
        groups[group].push(at);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

fn taking_turns(groups: &[Vec<usize>]) -> Vec<usize> {
    let longest = groups.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|turn| groups.iter().filter_map(move |group| group.get(turn)))
        .copied()
        .collect()
}

/// The same for every run: a failure can be looked at again.
fn shuffled(groups: &[Vec<usize>]) -> Vec<usize> {
    let mut random: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut left: Vec<std::slice::Iter<'_, usize>> =
        groups.iter().map(|group| group.iter()).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = (random % left.len() as u64) as usize;
        match left[at].next() {
            Some(&append) => order.push(append),
            None => drop(left.swap_remove(at)),
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(streams: &[&str]) -> Vec<Given> {
        let event = |n: usize| NewEvent::new("Counted", &n).unwrap();
        let append = |(n, stream): (usize, &&str)| Given {
            stream: (*stream).into(),
            events: vec![event(n)],
            recorded_at: None,
        };
        streams.iter().enumerate().map(append).collect()
    }

    fn orders(streams: &[&str], keys: &[&str]) -> Vec<Vec<(String, String)>> {
        let keys: Vec<Vec<String>> = keys.iter().map(|key| vec![(*key).to_owned()]).collect();
        let named = |appends: Vec<Given>| {
            let name =
                |append: Given| (append.stream.to_string(), append.events[0].data().to_owned());
            appends.into_iter().map(name).collect()
        };
        other_orders(&given(streams), &keys).into_iter().map(|(_, order)| named(order)).collect()
    }

    #[test]
    fn every_order_keeps_that_of_each_stream() {
        let streams = ["a", "b", "a", "c", "b", "a"];
        let orders = orders(&streams, &streams);
        assert_eq!(orders.len(), 3);
        for order in orders {
            assert_eq!(order.len(), streams.len());
            for stream in ["a", "b", "c"] {
                let numbers: Vec<&String> =
                    order.iter().filter(|(name, _)| name == stream).map(|(_, n)| n).collect();
                assert!(numbers.is_sorted(), "{order:?}");
            }
            let names: Vec<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
            assert_ne!(names, streams, "another order than the one given");
        }
    }

    #[test]
    fn streams_with_a_common_key_move_as_one() {
        // a and b share x, b and c share y: only d is free.
        let orders = orders(&["a", "b", "b", "c", "d"], &["x", "x", "y", "y", "z"]);
        for order in orders {
            let numbers: Vec<&String> =
                order.iter().filter(|(name, _)| name != "d").map(|(_, n)| n).collect();
            assert!(numbers.is_sorted(), "{order:?}");
        }
        assert!(self::orders(&["a", "b"], &["x", "x"]).is_empty());
    }

    #[test]
    fn a_key_that_is_called_like_another_stream_joins_nothing() {
        assert_eq!(orders(&["a", "b"], &["b", "a"]).len(), 3);
    }
}
