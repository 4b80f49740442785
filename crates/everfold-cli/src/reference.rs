//! The reference of the command in the documentation, made of the command line itself.
//!
//! `EVERFOLD_UPDATE=1 cargo test -p everfold-cli reference` writes it anew.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::cli::Cli;

const PAGE: &str = "docs/reference/command.md";

#[test]
fn reference_is_what_the_command_line_says() {
    let mut command = Cli::command();
    command.build();
    let mut page = head(&command);
    for command in command.get_subcommands_mut() {
        describe(command, "everfold", &mut page);
    }
    let page = page.trim_end().to_owned() + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    if std::env::var_os("EVERFOLD_UPDATE").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert!(
        fs::read_to_string(&file).unwrap() == page,
        "{PAGE} is not what the command line says; write it anew with \
         `EVERFOLD_UPDATE=1 cargo test -p everfold-cli reference`"
    );
}

/// What holds for all commands.
fn head(command: &Command) -> String {
    let mut page = String::from("# Reference: the command\n\n");
    page.push_str(
        "Every command and every option, made of the command's own help (a test keeps it so). Results go to\n\
         stdout, everything else to stderr. Without a terminal there are no colours and no bars; `NO_COLOR` turns\n\
         colours off.\n\n",
    );
    after_help(command, &mut page);
    page.push_str("## Options of every command\n\n");
    let global = command.get_arguments().filter(|argument| argument.is_global_set());
    table(global, &mut page);
    page.push_str("## Commands\n\n| command | |\n|---|---|\n");
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        let (name, about) = (command.get_name(), command.get_about().unwrap());
        writeln!(page, "| [`{name}`](#everfold-{name}) | {} |", cell(&about.to_string())).unwrap();
    }
    page.push('\n');
    page
}

/// A command and those below it.
fn describe(command: &mut Command, above: &str, page: &mut String) {
    if command.get_name() == "help" {
        return;
    }
    let path = format!("{above} {}", command.get_name());
    writeln!(page, "## {path}\n").unwrap();
    let about = command.get_long_about().or(command.get_about()).unwrap();
    writeln!(page, "{}\n", about.to_string().trim()).unwrap();
    let usage = command.render_usage().to_string();
    writeln!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ")).unwrap();
    let own = |argument: &&Arg| !argument.is_global_set() && argument.get_id() != "help";
    if command.get_arguments().any(|argument| own(&argument)) {
        table(command.get_arguments().filter(own), page);
    }
    after_help(command, page);
    for below in command.get_subcommands_mut() {
        describe(below, &path, page);
    }
}

fn table<'a>(arguments: impl Iterator<Item = &'a Arg>, page: &mut String) {
    page.push_str("| | |\n|---|---|\n");
    for argument in arguments {
        let help = argument.get_long_help().or(argument.get_help()).unwrap();
        let mut help = cell(&help.to_string());
        if argument.get_action().takes_values() {
            let possible: Vec<_> =
                argument.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
            if !possible.is_empty() {
                write!(help, " [one of: {}]", possible.join(", ")).unwrap();
            }
            for value in argument.get_default_values() {
                write!(help, " [default: {}]", value.display()).unwrap();
            }
        }
        writeln!(page, "| `{}` | {help} |", argument.to_string().replace('|', "\\|")).unwrap();
    }
    page.push('\n');
}

fn after_help(command: &Command, page: &mut String) {
    if let Some(after) = command.get_after_help() {
        writeln!(page, "```text\n{}\n```\n", after.to_string().trim()).unwrap();
    }
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('|', "\\|").replace('<', "\\<")
}
