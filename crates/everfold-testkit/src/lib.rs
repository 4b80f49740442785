//! The harness of everfold's own tests: private servers, faults and seeds.
//!
//! Nothing here knows the library. A test starts what it needs, meets everfold from outside as a
//! user would, and leaves nothing behind, however it ends.
//!
//! | To get | use |
//! |---|---|
//! | an empty database on the server all tests share | [`TestDatabase::create`] |
//! | a server to crash, to restart or to follow | [`Cluster::start`] |
//! | a pooler in transaction mode | [`PgBouncer::start`] |
//! | a connection that breaks at a chosen moment | [`Proxy::start`] |
//! | a random workload that can be repeated | [`Seed::from_env_or_random`] |
//! | an example run as its README says | [`printed`], [`shown`] |
//! | to wait for something | [`eventually`], never a fixed sleep |
//!
//! # Environment
//!
//! | Variable | Meaning |
//! |---|---|
//! | `EVERFOLD_PG_BIN` | folder of the PostgreSQL server programs to use |
//! | `EVERFOLD_TEST_URL` | use this server as the shared one instead of starting a cluster |
//! | `EVERFOLD_SEED` | replay the random workload of an earlier run |
//!
//! # Cleaning up
//!
//! Each server runs in its own folder under a guard: a small shell that notices when the test
//! process is gone, ends the server by its process id and removes the folder. Dropping the value
//! takes the same way, so a killed test and a finished test are cleaned up alike. The guard reads
//! `/proc`, so the harness runs on Linux.

mod binaries;
mod cluster;
mod database;
mod folder;
mod guard;
mod messages;
mod pgbouncer;
mod port;
mod proxy;
mod readme;
mod seed;
mod server;
mod trap;
mod wait;

pub use cluster::{Auth, Cluster, ClusterOptions, PASSWORD};
pub use database::TestDatabase;
pub use pgbouncer::{DEFAULT_POOL_SIZE, PgBouncer};
pub use port::free_port;
pub use proxy::{Loss, Proxy};
pub use readme::{printed, shown};
pub use seed::Seed;
pub use server::Server;
pub use wait::{eventually, eventually_blocking};
