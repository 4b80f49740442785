//! The given/then files of a project, `tests/*.toml`, as cases.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use everfold::testing::Variation;
use everfold::{Metadata, NewEvent, Uuid};
use jiff::Timestamp;
use serde_json::Value;

use super::toml_node::{Entry, Mistake, Node, parse};

/// The folder of a project that has them.
pub(super) const FOLDER: &str = "tests";

const FILE_KEYS: [&str; 2] = ["projection", "case"];
const CASE_KEYS: [&str; 6] = ["name", "projection", "given", "then", "fails", "without"];
const EVENT_KEYS: [&str; 8] =
    ["stream", "type", "data", "json", "metadata", "schema_version", "id", "recorded_at"];
const VARIATIONS: [(&str, Variation); 6] = [
    ("repeats", Variation::Repeats),
    ("crashes", Variation::Crashes),
    ("batches", Variation::Batches),
    ("order", Variation::Order),
    ("shards", Variation::Shards),
    ("lifecycle", Variation::Lifecycle),
];

/// Events, and what must come of them.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) projection: String,
    pub(super) projection_line: usize,
    pub(super) given: Vec<Given>,
    pub(super) then: Vec<Expected>,
    /// What refused events say, each.
    pub(super) fails: Vec<String>,
    pub(super) without: Vec<Variation>,
}

/// An event.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) stream: String,
    pub(super) event: NewEvent,
    pub(super) recorded_at: Option<Timestamp>,
}

/// All rows of a table, as far as these columns go.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) table: String,
    pub(super) line: usize,
    /// In the order in which rows name them, with the line of the first that does.
    pub(super) columns: Vec<(String, usize)>,
    pub(super) rows: Vec<Vec<Value>>,
}

/// All cases of a project, by file and line.
///
/// # Errors
/// The first thing that is wrong with them, with file and line.
pub(super) fn load_all(project: &Path) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for path in files(&project.join(FOLDER))? {
        let shown = path.display().to_string();
        let bytes = fs::read(&path).with_context(|| format!("cannot read {shown}"))?;
        let Ok(text) = String::from_utf8(bytes) else {
            bail!("{shown} is not UTF-8; save it as UTF-8");
        };
        let found = cases_of(&shown, &text).map_err(|mistake| anyhow!("{shown} {mistake}"))?;
        cases.extend(found);
    }
    Ok(cases)
}

/// The files, by name. No folder, no files.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    // Without `./` in front, for messages.
    let folder: PathBuf =
        folder.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect();
    let listed = match fs::read_dir(&folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", folder.display()));
        }
    };
    let mut files = Vec::new();
    for entry in listed {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        let is_hidden =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.extension().is_some_and(|extension| extension == "toml") && !is_hidden {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn cases_of(file: &str, text: &str) -> Result<Vec<Case>, Mistake> {
    let table = parse(text)?;
    let root = Node::new(text, "a file of cases", 1, table.get_ref(), &FILE_KEYS)?;
    let none = "a file of cases has no case; begin one with [[case]]";
    let none = || Mistake { line: 1, message: none.to_owned() };
    let listed = root.get("case").ok_or_else(none)?.tables()?;
    if listed.is_empty() {
        return Err(none());
    }
    let case = |(line, table)| {
        let node = Node::new(text, "a case", line, table, &CASE_KEYS)?;
        case_of(file, text, &node, root.get("projection"))
    };
    listed.into_iter().map(case).collect()
}

fn case_of(
    file: &str,
    text: &str,
    node: &Node<'_>,
    projection: Option<&Entry<'_>>,
) -> Result<Case, Mistake> {
    let name = node.required("name", "name = \"what must happen\", in a few words")?.text()?;
    let example = "projection = \"…\" to it, or above the first case";
    let projection = match (node.get("projection"), projection) {
        (None, Some(entry)) => entry,
        _ => node.required("projection", example)?,
    };
    let given = node.required("given", "the events, as [[case.given]]")?;
    let events = given
        .tables()?
        .into_iter()
        .map(|(line, table)| given_of(&Node::new(text, "an event", line, table, &EVENT_KEYS)?));
    let events: Vec<Given> = events.collect::<Result<_, _>>()?;
    if events.is_empty() {
        return Err(given.wrong("has no events; add one"));
    }
    let fails = match node.get("fails") {
        Some(fails) => fails.texts()?.into_iter().map(str::to_owned).collect(),
        None => Vec::new(),
    };
    let then = match node.get("then") {
        Some(then) => then_of(text, then)?,
        None if !fails.is_empty() => Vec::new(),
        None => return Err(missing_then(node)),
    };
    let without = node.get("without").map(variations).transpose()?.unwrap_or_default();
    Ok(Case {
        file: file.to_owned(),
        line: node.line,
        name: name.to_owned(),
        projection: projection.text()?.to_owned(),
        projection_line: projection.line,
        given: events,
        then,
        fails,
        without,
    })
}

fn missing_then(node: &Node<'_>) -> Mistake {
    let message = "a case has no then; add the rows of a table as [[case.then.TABLE]], \
                   case.then.TABLE = [] for none, or fails = \"…\" for an event that is refused";
    Mistake { line: node.line, message: message.to_owned() }
}

fn given_of(node: &Node<'_>) -> Result<Given, Mistake> {
    let stream = node.required("stream", "stream = \"cart-1\"")?.text()?;
    let event_type = node.required("type", "type = \"ItemAdded\"")?.text()?;
    let event = match (node.get("data"), node.get("json")) {
        (Some(_), Some(json)) => return Err(json.wrong("is data too; leave one of them out")),
        (Some(data), None) => NewEvent::new(event_type, &data.json()?).map_err(|e| e.to_string()),
        (None, Some(json)) => NewEvent::from_json(event_type, json.text()?)
            .map_err(|error| json.wrong(&format!("is not JSON: {error}")).message),
        (None, None) => NewEvent::from_json(event_type, "{}").map_err(|e| e.to_string()),
    };
    let line = node.line;
    let mut event = event.map_err(|message| Mistake { line, message })?;
    if let Some(metadata) = node.get("metadata") {
        event = event.with_metadata(Metadata::from(metadata.object()?));
    }
    if let Some(version) = node.get("schema_version") {
        event = event.with_schema_version(version.number()?);
    }
    if let Some(id) = node.get("id") {
        let id: Uuid = id.text()?.parse().map_err(|_| id.wrong("must be a UUID"))?;
        event = event.with_id(id);
    }
    let recorded_at = node.get("recorded_at").map(Entry::time).transpose()?;
    Ok(Given { stream: stream.to_owned(), event, recorded_at })
}

fn then_of(text: &str, then: &Entry<'_>) -> Result<Vec<Expected>, Mistake> {
    let tables = then.table()?;
    if tables.entries.is_empty() {
        return Err(then.wrong("names no table; add its rows as [[case.then.TABLE]]"));
    }
    tables.entries.iter().map(|entry| expected_of(text, entry)).collect()
}

/// A column that one row names is meant in all of them: where a row leaves it out, it is NULL.
fn expected_of(text: &str, entry: &Entry<'_>) -> Result<Expected, Mistake> {
    let rows = entry.tables()?.into_iter();
    let rows = rows.map(|(line, row)| Node::new(text, "a row", line, row, &[]));
    let rows: Vec<Node<'_>> = rows.collect::<Result<_, _>>()?;
    let mut columns: Vec<(String, usize)> = Vec::new();
    for cell in rows.iter().flat_map(|row| &row.entries) {
        if !columns.iter().any(|(name, _)| name == cell.key) {
            columns.push((cell.key.to_owned(), cell.line));
        }
    }
    let values = |row: &Node<'_>| -> Result<Vec<Value>, Mistake> {
        let cell = |(name, _): &(String, usize)| row.get(name).map_or(Ok(Value::Null), Entry::json);
        columns.iter().map(cell).collect()
    };
    let values = rows.iter().map(values).collect::<Result<_, _>>()?;
    Ok(Expected { table: entry.key.to_owned(), line: entry.line, columns, rows: values })
}

fn variations(entry: &Entry<'_>) -> Result<Vec<Variation>, Mistake> {
    let variation = |name: &str| {
        let found = VARIATIONS.iter().find(|(known, _)| *known == name);
        found.map(|(_, variation)| *variation).ok_or_else(|| {
            let known: Vec<&str> = VARIATIONS.iter().map(|(known, _)| *known).collect();
            entry.wrong(&format!("has \"{name}\"; there are {}", known.join(", ")))
        })
    };
    entry.texts()?.into_iter().map(variation).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cases(text: &str) -> Vec<Case> {
        cases_of("a.toml", text).unwrap_or_else(|mistake| panic!("{mistake}"))
    }

    fn mistake(text: &str) -> String {
        cases_of("a.toml", text).expect_err("it is wrong").to_string()
    }

    /// A case that is right, as far as it goes, with these lines after line 3.
    fn case(lines: &str) -> String {
        format!("[[case]]\nname = 'n'\nprojection = 'p'\n{lines}")
    }

    const GIVEN: &str = "given = [{ stream = 's', type = 'T' }]";

    #[test]
    fn case_is_read_in_both_ways_of_writing_it() {
        let long = cases(
            "projection = 'p'\n\n[[case]]\nname = 'n'\n[[case.given]]\nstream = 's'\ntype = 'T'\n\
             data = { n = 1 }\nmetadata = { by = 'me' }\nschema_version = 2\n\
             recorded_at = 2026-11-15T10:00:00Z\n[[case.then.t]]\nid = 's'\nn = 1\n",
        );
        let short = cases(
            "[[case]]\nname = 'n'\nprojection = 'p'\ngiven = [{ stream = 's', type = 'T', \
             json = '{\"n\":1}', metadata.by = 'me', schema_version = 2, \
             recorded_at = '2026-11-15T11:00:00+01:00' }]\nthen.t = [{ id = 's', n = 1 }]\n",
        );
        for (case, line) in [(&long[0], 3), (&short[0], 1)] {
            assert_eq!((case.name.as_str(), case.projection.as_str()), ("n", "p"));
            assert_eq!(case.line, line);
            let Given { stream, event, recorded_at } = &case.given[0];
            assert_eq!(
                (stream.as_str(), event.event_type(), event.data()),
                ("s", "T", "{\"n\":1}")
            );
            assert_eq!(event.schema_version(), 2);
            assert_eq!(recorded_at.unwrap().to_string(), "2026-11-15T10:00:00Z");
            let Expected { table, columns, rows, .. } = &case.then[0];
            let columns: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((table.as_str(), columns), ("t", vec!["id", "n"]));
            assert_eq!(*rows, [[json!("s"), json!(1)]]);
        }
    }

    #[test]
    fn column_that_a_row_leaves_out_is_null() {
        let text = case(&format!(
            "{GIVEN}\nthen.t = [{{ id = 'a' }}, {{ id = 'b', z = 1, n = 2 }}]\nthen.u = []"
        ));
        let then = &cases(&text)[0].then;
        assert_eq!(then[0].columns, [("id".into(), 5), ("z".into(), 5), ("n".into(), 5)]);
        let rows = [[json!("a"), Value::Null, Value::Null], [json!("b"), json!(1), json!(2)]];
        assert_eq!(then[0].rows, rows);
        assert!(then[1].table == "u" && then[1].rows.is_empty() && then[1].columns.is_empty());
    }

    #[test]
    fn refusals_need_no_rows() {
        let read = cases(&case(&format!("{GIVEN}\nfails = ['a', 'b']\nwithout = ['order']")));
        assert_eq!(read[0].fails, ["a", "b"]);
        assert_eq!(read[0].without, [Variation::Order]);
        assert!(read[0].then.is_empty());
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let event = |more: &str| case(&format!("given = [{{ stream = 's', type = 'T', {more} }}]"));
        for (text, message) in [
            ("", "line 1: a file of cases has no case"),
            ("case = []", "line 1: a file of cases has no case"),
            ("[[case", "line 1: "),
            ("\n[[cases]]", "line 2: cases is not a key of a file of cases; did you mean case?"),
            ("[case]\nname = 'n'", "line 1: case must be a list of tables"),
            ("\n[[case]]\nprojection = 'p'", "line 2: a case has no name"),
            ("[[case]]\nname = ' '", "line 2: name must be a text"),
            ("[[case]]\nname = 'n'", "line 1: a case has no projection; add projection"),
            (&case(""), "line 1: a case has no given"),
            (&case("given = []"), "line 4: given has no events"),
            (&case(GIVEN), "line 1: a case has no then"),
            (&case("given = [{ stream = 's' }]"), "line 4: an event has no type"),
            (
                &case("\n[[case.given]]\nstraem = 's'"),
                "line 6: straem is not a key of an event; did",
            ),
            (&event("json = '{'"), "line 4: json is not JSON"),
            (&event("data = 1, json = '2'"), "line 4: json is data too"),
            (&event("id = '7'"), "line 4: id must be a UUID"),
            (&event("schema_version = 0"), "line 4: schema_version must be"),
            (&event("recorded_at = 2026-11-15"), "line 4: recorded_at must be a time"),
            (&event("metadata = 1"), "line 4: metadata must be a table"),
            (&event("data = inf"), "line 4: data has a number"),
            (&case(&format!("{GIVEN}\nthen = {{}}")), "line 5: then names no table"),
            (&case(&format!("{GIVEN}\nthen = 1")), "line 5: then must be a table"),
            (&case(&format!("{GIVEN}\nthen.t = 1")), "line 5: t must be a list of tables"),
            (&case(&format!("{GIVEN}\nfails = []")), "line 5: fails is an empty list"),
            (&case(&format!("{GIVEN}\nfails = 1")), "line 5: fails must be a text"),
            (
                &case(&format!("{GIVEN}\nfails = 'x'\nwithout = 'luck'")),
                "line 6: without has \"luck\"",
            ),
        ] {
            let said = mistake(text);
            assert!(said.starts_with(message), "{text:?}: {said}");
        }
    }
}
