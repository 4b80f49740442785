//! How close everfold comes to what its databases can do: each figure beside the raw one, measured
//! in turn on the same machine with the same client. Run it with `scripts/bench`.
//!
//! It prints Markdown. Slow figures do not fail it; wrong results (a count that differs) do.

mod append;
mod arguments;
mod carts;
mod catch_up;
mod child;
mod drive;
mod group;
mod idle;
mod import;
mod inline;
mod latency;
mod machine;
mod measure;
mod memory;
mod raw;
mod read;
mod rebuild;
mod server;
mod sqlite;
mod wire;
mod workload;

use std::process::ExitCode;

use arguments::{Arguments, Request, Subject};
use server::Server;

/// What the subjects share.
struct Bench {
    arguments: Arguments,
    /// Started if a subject needs PostgreSQL.
    server: Option<Server>,
}

impl Bench {
    fn server(&self) -> &Server {
        self.server.as_ref().expect("a server is started for subjects that need one")
    }
}

fn main() -> ExitCode {
    let outcome = match arguments::parse(std::env::args().skip(1)) {
        Ok(Request::Measure(arguments)) => measure_all(arguments),
        Ok(Request::Child(job)) => job.run(),
        Ok(Request::Say(text)) => {
            println!("{text}");
            Ok(())
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(arguments: Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let needs_server = arguments.subjects.iter().any(|subject| *subject != Subject::Sqlite);
    let server = if needs_server { Some(Server::start()?) } else { None };
    let bench = Bench { arguments, server };
    runtime.block_on(async {
        println!("{}\n", machine::describe(&bench).await?);
        for subject in &bench.arguments.subjects {
            match subject {
                Subject::Append => append::run(&bench).await?,
                Subject::Group => group::run(&bench).await?,
                Subject::Read => read::run(&bench).await?,
                Subject::Import => import::run(&bench).await?,
                Subject::Sqlite => sqlite::run(&bench).await?,
                Subject::Memory => memory::run(&bench).await?,
                Subject::Inline => inline::run(&bench).await?,
                Subject::CatchUp => catch_up::run(&bench).await?,
                Subject::Rebuild => rebuild::run(&bench).await?,
                Subject::Latency => latency::run(&bench).await?,
                Subject::Idle => idle::run(&bench).await?,
            }
            println!();
        }
        Ok(())
    })
}
