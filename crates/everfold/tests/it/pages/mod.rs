//! Rust on the pages of the documentation. Each block there names a region of a file here, which is
//! compiled and run, and must be the same: `EVERFOLD_UPDATE=1` writes what is here into the pages.
//!
//! ```text
//!     // page: append            the region `append` begins
//!     …                          what a block that is marked `rust from=append` shows
//!     // end
//! ```

mod defaults;
mod guide_rebuilds;
mod guide_rust;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const SOURCES: [&str; 4] = [
    include_str!("guide_rebuilds.rs"),
    include_str!("guide_rust.rs"),
    include_str!("programs/first_steps.rs"),
    include_str!("programs/quick_start.rs"),
];

#[test]
fn rust_on_pages_is_what_runs_here() {
    let regions = regions();
    let mut shown = BTreeSet::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let wanted = with_regions(&text, &regions, &mut shown, &page);
        if std::env::var_os("EVERFOLD_UPDATE").is_some() {
            fs::write(&page, wanted).unwrap();
        } else {
            assert_eq!(text, wanted, "{}: EVERFOLD_UPDATE=1 writes it", page.display());
        }
    }
    let known: BTreeSet<&str> = regions.keys().copied().collect();
    assert_eq!(shown, known, "regions that pages show, and those there are");
}

/// A page with the regions that its blocks name.
fn with_regions<'a>(
    text: &str,
    regions: &BTreeMap<&'a str, String>,
    shown: &mut BTreeSet<&'a str>,
    page: &Path,
) -> String {
    let mut page_now = String::new();
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        page_now += line;
        let Some(words) = line.trim_end().strip_prefix("```rust") else { continue };
        let name = words.trim().strip_prefix("from=").unwrap_or_default();
        let Some((name, region)) = regions.get_key_value(name) else {
            panic!("{}: `{}` names no region of tests/it/pages", page.display(), line.trim_end());
        };
        shown.insert(name);
        page_now += region;
        page_now += lines.find(|line| line.trim_end() == "```").expect("a block ends");
    }
    page_now
}

/// The regions of all files, by name, as they stand on a page.
fn regions() -> BTreeMap<&'static str, String> {
    let mut regions = BTreeMap::new();
    for source in SOURCES {
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            let Some((indent, name)) = line.split_once("// page: ") else { continue };
            if !indent.trim().is_empty() {
                continue;
            }
            let inside = lines.by_ref().take_while(|line| line.trim() != "// end");
            let text: String = inside
                .map(|line| line.strip_prefix(indent).unwrap_or(line).to_owned() + "\n")
                .collect();
            assert!(regions.insert(name, text).is_none(), "two regions are called {name}");
        }
    }
    regions
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "examples"] {
        collect(&root.join(folder), &mut pages);
    }
    pages
}

/// The Markdown files in a folder and those below it, without what was installed or built there.
fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("node_modules") || path.ends_with("target") {
            continue;
        }
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}
