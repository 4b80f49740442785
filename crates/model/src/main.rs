//! Checks the model and prints what came of it.
//!
//! ```text
//! model                    every configuration: states, seconds, properties
//! model NAME …             these configurations
//! model --larger           the same with one more append each: minutes, and gigabytes
//! model --mistakes         every known mistake: what it violates, in how many steps
//! model --mistake NAME     the way into the violation, step by step
//! ```

use std::process::ExitCode;

use everfold_model::{Configuration, Mistake, check, find};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_well = match arguments.as_slice() {
        [] => check_all(Configuration::all()),
        ["--larger"] => check_all(Configuration::all().map(Configuration::larger)),
        ["--larger", name] => match Configuration::named(name) {
            Some(configuration) => check_all([configuration.larger()].into_iter()),
            None => return refuse("there is no such configuration"),
        },
        ["--mistakes"] => list_mistakes(),
        ["--mistake", name] => match Mistake::named(name) {
            Some(mistake) => show_mistake(mistake),
            None => return refuse(&format!("there is no mistake \"{name}\"")),
        },
        names => {
            let known: Option<Vec<_>> =
                names.iter().map(|name| Configuration::named(name)).collect();
            match known {
                Some(configurations) => check_all(configurations.into_iter()),
                None => return refuse("there is no such configuration"),
            }
        }
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn refuse(message: &str) -> ExitCode {
    eprintln!("model: {message}");
    eprintln!("configurations:");
    for configuration in Configuration::all() {
        eprintln!("    {:24} {}", configuration.name(), configuration.about());
    }
    eprintln!("mistakes, for --mistake:");
    for mistake in Mistake::all() {
        eprintln!("    {}", mistake.name());
    }
    ExitCode::from(2)
}

/// A line for each configuration, then what is wrong with it.
fn check_all(configurations: impl Iterator<Item = Configuration>) -> bool {
    println!(
        "{:24} {:>10} {:>8} {:>6} {:>8}",
        "configuration", "states", "seconds", "hold", "reached"
    );
    let mut is_well = true;
    let mut states = 0;
    for configuration in configurations {
        let report = check(&configuration);
        states += report.states;
        println!(
            "{:24} {:>10} {:>8.1} {:>6} {:>8}",
            configuration.name(),
            report.states,
            report.time.as_secs_f64(),
            report.held,
            report.reached
        );
        for (property, counterexample) in &report.violated {
            println!("\nviolated: {property}\n{counterexample}");
        }
        for situation in &report.missed {
            println!("not reached: {situation}");
        }
        is_well &= report.is_well();
    }
    println!("{:24} {states:>10}", "all");
    is_well
}

fn list_mistakes() -> bool {
    println!("{:32} {:>6}  violates", "mistake", "steps");
    let mut is_well = true;
    for mistake in Mistake::all() {
        let found = find(mistake);
        let steps = found.as_ref().map_or("none".into(), |found| found.steps().to_string());
        println!("{:32} {steps:>6}  {}", mistake.name(), mistake.violates());
        is_well &= found.is_some();
    }
    is_well
}

fn show_mistake(mistake: Mistake) -> bool {
    let Some(counterexample) = find(mistake) else {
        println!("{}: not found", mistake.name());
        return false;
    };
    println!("{}, in the configuration {}", mistake.name(), mistake.configuration());
    println!("violated: {}\n{counterexample}", mistake.violates());
    true
}
