//! Commands and options that pages name, against the reference, which is written by the command itself.

use std::collections::HashMap;
use std::fs;

use super::{docs, pages};

/// Options of all commands, and those before a command, with their value.
const EVERYWHERE: [&str; 5] = ["--url", "--project", "--yes", "--help", "--version"];

#[test]
fn commands_and_options_on_pages_exist() {
    let reference = fs::read_to_string(docs().join("reference/command.md")).unwrap();
    let sections = reference.split("\n## everfold ").skip(1);
    let sections: HashMap<&str, &str> =
        sections.map(|section| section.split_once('\n').unwrap()).collect();
    let mut looked_at = 0;
    for page in pages().iter().filter(|page| !page.ends_with("reference/command.md")) {
        let text = fs::read_to_string(page).unwrap();
        for line in commands(&text) {
            let place = format!("{}: everfold {line}", page.display());
            let words = words(line);
            let [long, short] = [2, 1].map(|count| words[..count.min(words.len())].join(" "));
            let section = sections.get(long.as_str()).or(sections.get(short.as_str()));
            let section = section.unwrap_or_else(|| panic!("{place}: there is no such command"));
            for option in line.split([' ', '=']).filter(|word| word.starts_with("--")) {
                let mut known = section.split(|c: char| !c.is_alphanumeric() && c != '-');
                let is_known = EVERYWHERE.contains(&option) || known.any(|known| known == option);
                assert!(is_known, "{place}: there is no {option}");
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 200, "only {looked_at} commands were found");
}

/// What stands behind `everfold ` in code, in the text and in blocks of a shell, without comments.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    let in_text = text.split('`').skip(1).step_by(2).filter(|code| !code.contains('\n'));
    let blocks = text.split("\n```sh").skip(1);
    let in_blocks = blocks.flat_map(|block| block.lines().take_while(|line| *line != "```"));
    let all = in_text.chain(in_blocks).filter_map(|line| line.strip_prefix("everfold "));
    all.map(|line| line.split(" #").next().unwrap_or_default().trim())
}

/// The words of a command that are no options.
fn words(line: &str) -> Vec<&str> {
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let mut plain = Vec::new();
    while let Some(word) = words.next() {
        if EVERYWHERE[..2].contains(&word) {
            words.next();
        } else if !word.starts_with('-') {
            plain.push(word);
        }
    }
    plain
}
