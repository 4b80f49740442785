//! PostgreSQL: a role with few rights is told what it may not look at, and all the rest.

use super::Found;
use crate::shop::Shop;
use crate::support::{Folder, Ran};

/// A login with one role, on a database with a catch-up projection.
async fn login(shop: &Shop, role: &str) -> (String, String) {
    let user = format!("{role}_of_{}", &shop.database().name()[30..]);
    let create = format!("CREATE ROLE {user} LOGIN PASSWORD 'told'; GRANT {role} TO {user}");
    shop.execute(&create).await;
    let database = shop.database();
    (database.server().as_user(&user, "told").url(database.name()), user)
}

fn doctor(url: &str) -> Ran {
    Folder::new().run(&["--url", url, "doctor"])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_role_may_not_look_at_is_told() {
    let shop = Shop::postgres().await;
    shop.sums("sums", super::CATCH_UP);
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["run", "--once"]).done();
    let holder = shop.database().connect().await;
    let append = "BEGIN; SELECT everfold.append('b', NULL, '[{\"type\": \"T\", \"data\": {}}]')";
    holder.batch_execute(append).await.unwrap();

    let mut users = Vec::new();
    for (role, unseen) in [
        ("everfold_events_reader", &["gates", "log", "read models", "projections"][..]),
        ("everfold_writer", &["log", "projections"]),
        ("everfold_admin", &[]),
    ] {
        let (url, user) = login(&shop, role).await;
        let ran = doctor(&url).exits(0).prints(&format!("{user} may "));
        let ran = ran.prints("the high-water mark waits for\n  pid ");
        let ran = ran.prints("those of others are not looked at");
        for check in unseen {
            let lines = |line: &&str| line.starts_with("warning") && line.contains(check);
            let line = ran.stdout.lines().find(lines);
            let line = line.unwrap_or_else(|| panic!("{check} for {role}: {ran:#?}"));
            assert!(line.contains("permission denied"), "{check} for {role}: {line}");
        }
        let denied = ran.stdout.matches("permission denied").count();
        assert_eq!(denied, unseen.len(), "{role}: {ran:#?}");
        users.push(user);
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    for user in users {
        let drop = format!("DROP ROLE {user}");
        everfold_testkit::eventually("its sessions end", crate::support::LIMIT, async || {
            shop.database().connect().await.batch_execute(&drop).await.is_ok()
        })
        .await;
    }
    Found::by(&shop, &[], 0).is_ok("log");
}
