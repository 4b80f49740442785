//! SQLite: whoever holds the file, a write-ahead log that grows, and damage.

use std::fs;
use std::process::Command;

use super::{CATCH_UP, Found};
use crate::shop::Shop;
use crate::support::{Folder, line};

#[test]
fn program_that_holds_the_write_lock_is_named() {
    let shop = Shop::sqlite();
    shop.numbers("events", &[("a", Some(1))]);
    Found::by(&shop, &[], 0).is_ok("writing");
    let other = shop.folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "writing", "the write lock was not to be had");
    let pid = std::process::id();
    if cfg!(target_os = "linux") {
        assert!(message.contains(&format!("; pid {pid} (")), "{message}");
        assert!(
            hint.contains(&format!("if it still has it and should not, `kill {pid}` ends it")),
            "{hint}"
        );
    } else {
        assert!(hint.starts_with("`fuser -v "), "{hint}");
    }
    other.execute_batch("ROLLBACK").unwrap();
    Found::by(&shop, &[], 0).is_ok("writing");
}

#[test]
fn reader_that_lets_the_write_ahead_log_grow_is_named() {
    let shop = Shop::sqlite();
    shop.numbers("events", &[("a", Some(1))]);
    let (reader, writer) = (shop.folder.connect(), shop.folder.connect());
    reader.execute_batch("BEGIN; SELECT count(*) FROM everfold_events").unwrap();
    let grow = "CREATE TABLE mine (data BLOB); INSERT INTO mine VALUES (zeroblob(105000000))";
    writer.execute_batch(grow).unwrap();
    let found = Found::by(&shop, &[], 0);
    let (message, hint) =
        found.told("warning", "journal", "journal mode wal, write-ahead log of 1");
    if cfg!(target_os = "linux") {
        let pid = std::process::id();
        assert!(message.contains(&format!(": pid {pid} (")), "{message}");
        assert!(message.ends_with("keeps a read transaction open, so it cannot be written back"));
        assert!(hint.ends_with(&format!("`kill {pid}` ends the program")), "{hint}");
    }
    reader.execute_batch("COMMIT").unwrap();
    let (_, hint) = Found::by(&shop, &[], 0).told("warning", "journal", "write-ahead log of 1");
    assert!(hint.ends_with("'PRAGMA wal_checkpoint(TRUNCATE)'` writes it back"), "{hint}");
    writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    Found::by(&shop, &[], 0).is_ok("journal");
}

#[test]
fn damaged_file_is_told() {
    let shop = Shop::sqlite();
    shop.sums("sums", CATCH_UP);
    let numbers: Vec<_> = (0..500).map(|n| ("a", Some(n))).collect();
    shop.numbers("events", &numbers);
    shop.run(&["run", "--once"]).done();
    Found::by(&shop, &[], 0).is_ok("integrity");
    let connection = shop.folder.connect();
    let page =
        "SELECT rootpage FROM sqlite_schema WHERE name = 'everfold_events_type_position_idx'";
    let page: u32 = connection.query_row(page, [], |row| row.get(0)).unwrap();
    let size: u32 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    let file = shop.folder.file("everfold.db");
    let mut bytes = fs::read(&file).unwrap();
    let (page, size) = (page as usize, size as usize);
    // Cells of the index, behind the header of its first page.
    bytes[(page - 1) * size + 12..page * size].fill(0xff);
    fs::write(&file, bytes).unwrap();
    let found = Found::by(&shop, &[], 3);
    let (_, hint) = found.told("problem", "integrity", "the file is damaged: ");
    assert!(hint.contains("restore a backup"), "{hint}");
}

/// As a user who may not write; root may write everything.
#[cfg(unix)]
#[test]
fn file_that_may_not_be_written_is_told() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let folder = Folder::with_events(&line("a", "T", "{}"));
    let permit = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode));
    let file = folder.file("everfold.db");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    permit(0o555).unwrap();
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let binary = folder.file("everfold");
    permit(0o755).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_everfold"), &binary).unwrap();
    permit(0o555).unwrap();
    let mut command = Command::new(&binary);
    command.arg("doctor").current_dir(folder.path()).env_remove("EVERFOLD_URL");
    if is_root {
        command.uid(65_534);
    }
    let output = command.output().unwrap();
    permit(0o755).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the file is read-only for this user"), "{said}");
    assert!(said.contains("allow writing the file and its folder"), "{said}");
}
