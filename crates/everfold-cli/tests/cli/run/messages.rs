//! What happened to projections, as `everfold messages` tells it, and who did it.

use super::{CATCH_UP, INLINE};
use crate::shop::{Shop, on_both_stores};
use crate::support::{LIMIT, field, lines, send, wait};

on_both_stores! {
    messages_tell_what_happened_and_who_did_it,
    messages_are_chosen_by_projection_and_kind,
    operator_is_known_also_without_a_variable,
    what_cannot_be_discarded_is_told_before_anybody_is_asked,
    what_was_done_before_a_wrong_name_is_told,
}

async fn messages_tell_what_happened_and_who_did_it(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}retries = 0\non_error = \"dead-letter\"\n"));
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1)), ("b", None), ("b", Some(5))]);
    shop.run(&["run", "--once"]).exits(0);
    shop.run(&["dead-letters", "retry", "sums"]).exits(1);
    let discard = ["--yes", "dead-letters", "discard", "sums", "2", "--reason", "sent by a test"];
    shop.run(&discard).done().prints("2: discarded, and 1 event behind it applied");
    shop.run(&["pause", "sums"]).done();
    shop.run(&["resume", "sums"]).done();
    shop.sums("sums", &format!("{CATCH_UP}retries = 7\non_error = \"skip\"\n"));
    shop.run(&["run", "--once"]).done();

    let told = shop.run(&["messages", "--json"]).done().json_lines();
    let kinds: Vec<&str> = told.iter().map(|m| m["kind"].as_str().unwrap()).collect();
    let treated = ["dead-letter", "dead-letter-retried", "dead-letter-discarded"];
    let expected = [&["registered"][..], &treated, &["status", "status", "settings"]].concat();
    assert_eq!(kinds, expected);
    let of = |kind: &str| told.iter().find(|message| message["kind"] == kind).unwrap();
    for message in &told {
        assert_eq!((&message["projection"], &message["version"]), (&"sums".into(), &1.into()));
        assert!(message["actor"].as_str().unwrap().len() > 1, "{message}");
    }
    assert_eq!(
        (&of("dead-letter")["position"], &of("dead-letter")["key"]),
        (&2.into(), &"b".into())
    );
    let reason = of("dead-letter")["message"].as_str().unwrap();
    assert!(
        reason.contains("(\"Counted\", stream \"b\"): projections/sums/apply.sql:1: "),
        "{reason}"
    );
    assert_eq!(of("dead-letter-discarded")["message"], "sent by a test");
    assert_eq!(of("settings")["message"], "on_error is skip, was dead-letter; retries is 7, was 0");

    let ran = shop.run(&["messages", "sums"]).done();
    let mut shown = ran.stdout.lines();
    let header: Vec<&str> = shown.next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["TIME", "PROJECTION", "VERSION", "KIND", "POSITION", "KEY", "BY"]);
    assert!(shown.next().unwrap().contains("  sums        1        registered "), "{ran:#?}");
    assert_eq!(shown.next(), Some("    version 1 is active"));
    ran.prints("\n    sent by a test\n");
}

async fn messages_are_chosen_by_projection_and_kind(shop: Shop) {
    shop.sums("order_sums", CATCH_UP);
    shop.sums("cart_sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.run(&["pause", "cart_sums"]).done();
    let told = |arguments: &[&str]| {
        let ran = shop.run(&[&["messages", "--json"], arguments].concat()).done();
        let lines = ran.json_lines();
        let words = field(&lines, "projection").into_iter().zip(field(&lines, "kind"));
        words.map(|(name, kind)| format!("{} {}", name, kind).replace('"', "")).collect::<Vec<_>>()
    };
    let all = ["cart_sums registered", "order_sums registered", "cart_sums status"];
    assert_eq!(told(&[]), all);
    assert_eq!(told(&["--limit", "2"]), all[1..]);
    assert_eq!(told(&["order_sums"]), all[1..2]);
    assert_eq!(told(&["--kind", "status", "--kind", "failure"]), all[2..]);
    assert_eq!(told(&["--kind", "registered", "--limit", "1"]), all[1..2]);
    shop.run(&["messages", "--kind", "failure"]).done().prints("no messages");
    shop.run(&["messages", "--kind", "failures"]).fails(2, "failure");
    shop.run(&["messages", "--limit", "0"]).fails(2, "--limit");
    shop.run(&["messages", "order_sum"]).fails(1, "did you mean \"order_sums\"?");
}

async fn operator_is_known_also_without_a_variable(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    let url = shop.url();
    let mut command = shop.folder.command(&shop.arguments(&url, &["pause", "sums"]));
    for name in ["USER", "LOGNAME", "USERNAME"] {
        command.env_remove(name);
    }
    assert!(command.status().unwrap().success());
    let told = shop.run(&["messages", "--kind", "status", "--json"]).done().json();
    let actor = told["actor"].as_str().unwrap();
    assert!(!actor.contains("somebody") && !actor.contains("unknown"), "{told}");
}

async fn what_cannot_be_discarded_is_told_before_anybody_is_asked(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}retries = 0\non_error = \"dead-letter\"\n"));
    shop.numbers("events", &[("b", None), ("b", Some(5))]);
    shop.run(&["run", "--once"]).exits(0);
    let discard = |position: &str| shop.run(&["dead-letters", "discard", "sums", position]);
    discard("7").fails(1, "\"sums\" has no dead letter at position 7");
    discard("2").fails(1, "waits behind the dead letter at 1");
    let retry = |position: &str| shop.run(&["dead-letters", "retry", "sums", position]);
    retry("7").fails(1, "\"sums\" has no dead letter at position 7");
    retry("2").fails(1, "waits behind the dead letter at 1");
    let ran = shop.run(&["--yes", "dead-letters", "discard", "sums", "1", "7"]);
    ran.fails(1, "no dead letter at position 7");
    let left = shop.run(&["dead-letters", "list", "--json"]).done().json_lines();
    assert_eq!(left.len(), 2, "nothing was given up");
    discard("1").fails(2, "Give up 1 event of sums for good? nobody is there to ask");
}

async fn what_was_done_before_a_wrong_name_is_told(shop: Shop) {
    shop.sums("first", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    let ran = shop.run(&["pause", "first", "second"]).exits(1).prints("paused first");
    ran.says("there is no projection \"second\"");
    let ran = shop.run(&["resume", "first", "second"]).exits(1).prints("resumed first");
    ran.says("there is no projection \"second\"");
}

#[test]
fn messages_are_followed_until_a_signal() {
    let shop = Shop::sqlite();
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    let mut child = shop.folder.command(&["messages", "--follow", "--json"]).spawn().unwrap();
    let shown = lines(child.stdout.take().unwrap());
    assert!(shown.recv_timeout(LIMIT).unwrap().contains("\"kind\":\"registered\""));
    shop.run(&["pause", "sums"]).done();
    assert!(shown.recv_timeout(LIMIT).unwrap().contains("paused by "));
    shop.run(&["resume", "sums"]).done();
    assert!(shown.recv_timeout(LIMIT).unwrap().contains("\"kind\":\"status\""));
    send(&child, "INT");
    assert_eq!(wait(&mut child), Some(0));
}
