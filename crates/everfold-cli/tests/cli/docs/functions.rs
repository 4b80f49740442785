//! The reference of SQL functions against the functions that there are.

use std::collections::BTreeSet;
use std::fs;

use everfold_testkit::TestDatabase;

use super::{What, docs, steps};
use crate::shop::Shop;

/// Functions that roles other than `everfold_admin` may call because the library calls them for its user.
const ENGINES_OWN: [&str; 9] = [
    "append_event_carrying",
    "append_group",
    "carry",
    "give_up_inline",
    "import_chunk",
    "import_progress",
    "stage_import",
    "try_inline",
    "uuid_v7",
];

const FUNCTIONS: &str = "
    SELECT proname::text, pg_get_function_arguments(f.oid), pg_get_function_result(f.oid)
      FROM pg_proc f
     WHERE pronamespace = 'everfold'::regnamespace
       AND EXISTS (SELECT FROM pg_roles r
                    WHERE rolname IN ('everfold_writer', 'everfold_events_reader', 'everfold_read_models')
                      AND has_function_privilege(r.oid, f.oid, 'EXECUTE'))";

#[tokio::test(flavor = "multi_thread")]
async fn reference_has_the_functions_that_the_database_has() {
    let shop = Shop::postgres().await;
    let found = in_database(shop.database()).await;
    assert_eq!(on_page(), found, "docs/reference/sql.md, and the database");
}

async fn in_database(database: &TestDatabase) -> BTreeSet<String> {
    let rows = database.connect().await.query(FUNCTIONS, &[]).await.unwrap();
    let functions = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2)));
    let functions = functions.filter(|(name, ..)| !ENGINES_OWN.contains(name));
    functions.map(|(name, arguments, result)| plain(name, arguments, result)).collect()
}

/// A signature as PostgreSQL describes it, in the form of the page.
fn plain(name: &str, arguments: &str, result: &str) -> String {
    let arguments = arguments.split(", ").map(without_cast).collect::<Vec<_>>();
    let (outs, ins): (Vec<String>, Vec<String>) =
        arguments.into_iter().partition(|argument| argument.starts_with("OUT "));
    let outs = outs.join(", ").replace("OUT ", "");
    let result = result.replace('"', "").replace("TABLE(", "(").replace("SETOF ", "");
    let result = if outs.is_empty() { result } else { format!("({outs})") };
    let result = result.replace("timestamp with time zone", "timestamptz");
    format!("{name}({}) -> {result}", ins.join(", "))
}

fn without_cast(argument: &str) -> String {
    let plain = argument.split("::").next().unwrap_or_default();
    plain.replace('"', "").replace(" DEFAULT ", " = ")
}

/// The signatures of the page, each on one line.
fn on_page() -> BTreeSet<String> {
    let path = docs().join("reference/sql.md");
    let steps = steps(&fs::read_to_string(&path).unwrap(), &path);
    let blocks = steps.iter().filter(|step| matches!(step.what, What::Functions));
    let lines = blocks.flat_map(|step| step.text.lines());
    let lines = lines.map(|line| line.split(" -- ").next().unwrap_or_default());
    let text: Vec<&str> = lines.collect();
    let text = format!("\n{}", text.join("\n"));
    let signatures = text.split("\neverfold.").skip(1);
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    signatures.map(|text| one_line(text).replace("rows of ", "")).collect()
}
