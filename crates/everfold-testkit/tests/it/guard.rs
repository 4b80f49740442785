//! Failure: a test process dies without running destructors. At risk: servers, folders and shared
//! memory pile up on the machine. Guaranteed: the guards of its servers remove all of them.
//!
//! The dying process is this test binary again, told by an environment variable to play a part.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use everfold_testkit::{Cluster, ClusterOptions, PgBouncer, Server, eventually_blocking};

use crate::LIMIT;

const PART: &str = "EVERFOLD_TESTKIT_PART";

/// Not a test of its own: what the dying process does.
#[test]
fn part_of_the_dying_process() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let standby = cluster.standby().unwrap();
    let pooler = PgBouncer::start(Server::shared()).unwrap();
    println!("started");
    match part.as_str() {
        "exit" => std::process::exit(0),
        _ => std::thread::park(),
    }
    drop((cluster, standby, pooler));
}

#[test]
fn killed_process_leaves_nothing_behind() {
    let mut scene = Scene::begin("wait");
    scene.wait_for_line("started");
    let segments = shared_memory_ids(scene.folder());
    assert_eq!(segments.len(), 3, "cluster, standby and shared cluster");
    assert_eq!(entries(scene.folder()).len(), 4, "the three and the pooler");

    scene.kill();
    scene.expect_nothing_left();
    let left = all_shared_memory_ids();
    assert!(segments.iter().all(|id| !left.contains(id)), "{segments:?} in {left:?}");
}

#[test]
fn exited_process_leaves_nothing_behind() {
    let mut scene = Scene::begin("exit");
    scene.wait_for_line("started");
    assert!(scene.process.wait().unwrap().success());
    scene.expect_nothing_left();
}

#[test]
fn process_killed_while_the_cluster_is_made_leaves_nothing_behind() {
    let mut scene = Scene::begin("wait");
    eventually_blocking("initdb is at work", LIMIT, || {
        entries(scene.folder()).iter().any(|folder| folder.join("data/PG_VERSION").exists())
    });
    scene.kill();
    scene.expect_nothing_left();
}

#[test]
fn process_killed_while_the_server_starts_leaves_nothing_behind() {
    let mut scene = Scene::begin("wait");
    eventually_blocking("the server writes its log", LIMIT, || {
        entries(scene.folder()).iter().any(|folder| folder.join("log").exists())
    });
    scene.kill();
    scene.expect_nothing_left();
}

#[test]
fn dropped_cluster_is_gone_at_once() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let folder = cluster.folder().to_owned();
    assert!(!processes_in(&folder).is_empty());
    drop(cluster);
    assert!(!folder.exists());
    assert_eq!(processes_in(&folder), Vec::<PathBuf>::new());
}

/// A process that will die, and the folder in which it makes all its folders.
struct Scene {
    process: Child,
    folder: tempfile::TempDir,
}

impl Scene {
    fn begin(part: &str) -> Scene {
        let folder = tempfile::Builder::new().prefix("everfold-it-").tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "guard::part_of_the_dying_process", "--nocapture"])
            .env(PART, part)
            .env("TMPDIR", folder.path())
            .env_remove("EVERFOLD_TEST_URL")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Scene { process, folder }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn wait_for_line(&mut self, wanted: &str) {
        let output = BufReader::new(self.process.stdout.take().unwrap());
        let found = output.lines().map_while(Result::ok).any(|line| line.ends_with(wanted));
        assert!(found, "the process printed no line {wanted:?}");
    }

    /// SIGKILL: the process gets no chance to clean up.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn expect_nothing_left(&self) {
        eventually_blocking("all folders are removed", LIMIT, || entries(self.folder()).is_empty());
        eventually_blocking("all processes are gone", LIMIT, || {
            processes_in(self.folder()).is_empty()
        });
        assert_eq!(entries(self.folder()), Vec::<PathBuf>::new(), "nothing came back");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The working folders, inside `folder`, of all processes that have one there.
fn processes_in(folder: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let working = processes.filter_map(|process| fs::read_link(process.path().join("cwd")).ok());
    working.filter(|path| path.starts_with(folder)).collect()
}

/// The System V segments of all clusters in `folder`: second number of the line in
/// `postmaster.pid` that holds key and id.
fn shared_memory_ids(folder: &Path) -> Vec<String> {
    let pid_files = entries(folder).into_iter().map(|folder| folder.join("data/postmaster.pid"));
    let texts = pid_files.filter_map(|file| fs::read_to_string(file).ok());
    texts
        .map(|text| text.lines().nth(6).unwrap().split_whitespace().last().unwrap().to_owned())
        .collect()
}

fn all_shared_memory_ids() -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let rows = table.lines().skip(1);
    rows.filter_map(|row| row.split_whitespace().nth(1).map(str::to_owned)).collect()
}
