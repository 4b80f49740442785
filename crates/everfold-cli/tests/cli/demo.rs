//! `everfold demo`: the whole story, small, on both stores; and what it refuses.

use everfold_testkit::{TestDatabase, eventually};
use serde_json::Value;

use crate::shop::{Shop, on_both_stores};
use crate::support::{Folder, LIMIT, Ran, ended, interrupt, lines, wait};

on_both_stores! {
    shop_adds_up_and_can_be_gone_on_with,
    store_with_events_or_projections_is_refused,
    interrupted_demo_leaves_a_folder_that_works,
}

/// Fewer events than by default, and no time to watch.
const SMALL: [&str; 5] = ["demo", "--events", "1500", "--seconds", "1"];

/// The arguments of a demo on this store.
fn demo<'a>(shop: &Shop, url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    shop.arguments(url, &[&SMALL[..], more].concat())
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

async fn shop_adds_up_and_can_be_gone_on_with(shop: Shop) {
    let url = shop.url();
    let ran = shop.folder.run(&demo(&shop, &url, &["my-shop", "--json"])).exits(0);
    let report = ran.json();
    for fault in ["lost", "doubled", "reordered", "invented", "rows_that_differ"] {
        assert_eq!(number(&report, fault), 0, "{fault} in {report:#}");
    }
    let (events, filled) = (number(&report, "events"), number(&report, "filled"));
    assert_eq!(filled, 1_500);
    assert!(events > filled, "{report:#}");
    assert_eq!(number(&report, "rows_checked"), 150 + 8, "carts and products: {report:#}");
    assert!(number(&report, "conflicts_refused") > 0, "{report:#}");
    assert!(report["longest_wait_ms"].as_f64() >= report["wait_p99_ms"].as_f64(), "{report:#}");

    let rebuild = &report["rebuild"];
    assert_eq!((&rebuild["killed"], &rebuild["version"]), (&1.into(), &2.into()), "{report:#}");
    assert!(number(rebuild, "killed_at") > 0, "{report:#}");
    assert!(number(rebuild, "went_on_at") >= number(rebuild, "killed_at"), "{report:#}");
    assert!(ran.stderr.contains(" with SIGKILL, at "), "{ran:#?}");

    let project =
        |arguments: &[&str]| shop.folder.run(&[&["--project", "my-shop"], arguments].concat());
    let exported = project(&["export"]).exits(0).json_lines();
    assert_eq!(exported.len() as u64, events);
    assert!(shop.folder.read("my-shop/projections/cart_totals/projection.toml").contains("= 2"));
    for command in report["next"].as_array().unwrap() {
        let command = command.as_str().unwrap();
        let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
        shop.folder.run(&arguments).exits(0);
    }
    project(&["run", "--once"]).exits(0);
    shop.run(&["--project", "my-shop", "test"]).exits(0).prints("2 passed, 0 failed");
    project(&["promote", "cart_totals"]).exits(0).prints("readers see version 2");
    project(&["verify", "cart_totals", "--all"]).exits(0).prints("all are as the log says");
    project(&["verify", "bestsellers", "--all"]).exits(0).prints("all are as the log says");
}

#[test]
fn piped_output_is_plain_and_narrow() {
    let folder = Folder::new();
    let mut command = folder.command(&SMALL);
    command.env("EVERFOLD_URL", "sqlite:not-this.db");
    let ran = ended(command.spawn().unwrap()).done();
    for text in [&ran.stdout, &ran.stderr] {
        for line in text.lines().filter(|line| !line.contains("--project")) {
            assert!(line.chars().all(|c| !c.is_control()), "{line:?}");
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    for part in ["lost 0, doubled 0, reordered 0", "everything adds up", "longest wait "] {
        assert!(ran.stdout.contains(part), "no {part} in {ran:#?}");
    }
    let next: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("--project")).collect();
    assert_eq!(next.len(), 3, "{ran:#?}");
    assert!(ran.stdout.ends_with("unset EVERFOLD_URL first, which names another store\n"));
    assert!(ran.stderr.contains("\nfilled   150 carts with 1,500 events in "), "{ran:#?}");
    assert!(!folder.file("not-this.db").exists(), "the variable is not for the demo");
}

#[test]
fn nothing_that_is_there_is_overwritten() {
    let folder = Folder::new();
    folder.write("everfold-demo/mine.txt", "mine");
    let ran = folder.run(&["demo"]).fails(1, "everfold-demo is there already");
    ran.says("name another folder (`everfold demo DIR`)");
    assert_eq!(std::fs::read_dir(folder.file("everfold-demo")).unwrap().count(), 1);
    folder.write("file", "mine");
    folder.run(&["demo", "file"]).fails(1, "file is there already");
    folder.run(&["demo", "file/shop"]).fails(1, "cannot make the folder file/shop");
    folder.run(&["demo", "a", "--project", "b"]).fails(2, "name the folder once");
    assert!(!folder.file("a").exists() && !folder.file("b").exists());
}

async fn store_with_events_or_projections_is_refused(shop: Shop) {
    let database = match shop.is_sqlite() {
        true => None,
        false => Some(TestDatabase::create().await),
    };
    let url = database.as_ref().map_or("sqlite:mine.db".to_owned(), TestDatabase::url);
    let run = |arguments: &[&str]| shop.folder.run(&[arguments, &["--url", &url]].concat());
    let refused = |ran: Ran, what: &str| {
        let ran = ran.fails(1, &format!(" has {what} already, and nothing was written to it"));
        ran.says("name a database that is empty");
        assert!(!shop.folder.file("everfold-demo").exists());
    };
    run(&["schema", "apply"]).exits(0);
    shop.sums("sums", "version = 1\nlifecycle = \"catch-up\"\n");
    run(&["run", "--once"]).exits(0);
    refused(run(&SMALL), "1 projections");
    run(&["append", "--stream", "a", "--type", "T"]).exits(0);
    refused(run(&SMALL), "events");
    assert_eq!(run(&["export"]).exits(0).json_lines().len(), 1);
}

/// Stopped while the rebuild is under way, which the project's own command then ends.
async fn interrupted_demo_leaves_a_folder_that_works(shop: Shop) {
    let url = shop.url();
    let mut child = shop.folder.command(&demo(&shop, &url, &["my-shop"])).spawn().unwrap();
    let stderr = lines(child.stderr.take().unwrap());
    let mut said = Vec::new();
    while !said.iter().any(|line: &String| line.contains(" goes on at ")) {
        said.push(stderr.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{said:#?}")));
    }
    interrupt(&child);
    assert_eq!(wait(&mut child), Some(1));
    while let Ok(line) = stderr.recv_timeout(LIMIT) {
        said.push(line);
    }
    let said = said.join("\n");
    assert!(said.contains("\nstopped; what there is of the shop is in my-shop"), "{said}");
    assert!(said.contains("--project my-shop rebuild cart_totals"), "{said}");

    let project =
        |arguments: &[&str]| shop.folder.run(&[&["--project", "my-shop"], arguments].concat());
    eventually("its rebuilder is gone", LIMIT, async || {
        let rebuild = project(&["rebuilds", "--json"]).exits(0).json_lines().remove(0);
        assert_ne!(rebuild["phase"], "done", "nobody works on it any more");
        rebuild["worker"].is_null()
    })
    .await;
    let ran = project(&["rebuild", "cart_totals"]).exits(0);
    ran.prints("readers see version 2 of cart_totals now");
    project(&["run", "--once"]).exits(0);
    project(&["verify", "cart_totals", "--all"]).exits(0).prints("all are as the log says");
    project(&["verify", "bestsellers", "--all"]).exits(0).prints("all are as the log says");
}
