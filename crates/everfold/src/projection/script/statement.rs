//! One statement of a script, and what the engine changes in it: names of tables, and the relation
//! `batch` in front. Whatever is changed, every newline stays, so that the line of an error in what
//! was sent leads to the line of the file.

use std::ops::Range;

use super::ScriptError;
use super::token::{Kind, Token, line_of, tokens};

/// The schema that projections name their tables with.
const SCHEMA: &str = "read_model";
/// What can have `WITH` in front.
const WITH_MAY_PRECEDE: [&str; 8] =
    ["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "VALUES", "REPLACE", "TABLE"];

/// A statement, without the semicolon and without comments before and behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) text: String,
    /// The line of the file where it begins, from 1.
    pub(crate) line: u32,
    pub(super) tokens: Vec<Token>,
}

/// A table named `read_model.<name>`, and where.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) range: Range<usize>,
    /// The token after it.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    pub(super) next: usize,
}

struct Edit {
    range: Range<usize>,
    text: String,
}

/// Cuts a script at its semicolons.
pub(super) fn statements(sql: &str) -> Result<Vec<Statement>, ScriptError> {
    let (mut found, mut current, mut block) = (Vec::new(), Vec::<Token>::new(), Block::default());
    for token in tokens(sql)? {
        if token.kind == Kind::Sign(';') && block.depth == 0 {
            found.extend(Statement::of(sql, &current));
            current.clear();
            continue;
        }
        block.see(sql, &current, &token);
        current.push(token);
    }
    if let (Some(first), true) = (current.first(), block.depth > 0) {
        let message = "BEGIN of this statement has no END; add it".to_owned();
        return Err(ScriptError { line: line_of(sql, first.start), message });
    }
    found.extend(Statement::of(sql, &current));
    Ok(found)
}

/// How deep in `BEGIN … END` of a trigger or function, whose statements have semicolons of their own.
#[derive(Default)]
struct Block {
    depth: usize,
}

impl Block {
    fn see(&mut self, sql: &str, before: &[Token], token: &Token) {
        let created = before.first().is_some_and(|first| first.is_word(sql, "create"));
        let begins = created && token.is_word(sql, "begin");
        let nests = self.depth > 0 && (token.is_word(sql, "case") || begins);
        if nests || begins {
            self.depth += 1;
        } else if self.depth > 0 && token.is_word(sql, "end") {
            self.depth -= 1;
        }
    }
}

impl Statement {
    fn of(sql: &str, found: &[Token]) -> Option<Statement> {
        let (first, last) = (found.first()?, found.last()?);
        let moved = |token: &Token| Token {
            kind: token.kind,
            start: token.start - first.start,
            end: token.end - first.start,
        };
        Some(Statement {
            text: sql[first.start..last.end].to_owned(),
            line: line_of(sql, first.start),
            tokens: found.iter().map(moved).collect(),
        })
    }

    /// The first keyword, in upper case; empty if the statement begins with something else.
    pub(crate) fn keyword(&self) -> String {
        self.word(0)
    }

    /// The keyword of what is done: as [`Statement::keyword`], and what comes after the `WITH` list
    /// if there is one.
    pub(crate) fn main_keyword(&self) -> String {
        if self.keyword() != "WITH" {
            return self.keyword();
        }
        let mut depth = 0_i32;
        for (index, token) in self.tokens.iter().enumerate() {
            match token.kind {
                Kind::Sign('(') => depth += 1,
                Kind::Sign(')') => depth -= 1,
                Kind::Word if depth == 0 && index > 1 && !self.is_name_of_with(index) => {
                    let word = self.word(index);
                    if WITH_MAY_PRECEDE.contains(&word.as_str()) {
                        return word;
                    }
                }
                _ => {}
            }
        }
        self.keyword()
    }

    /// A name in the `WITH` list, which may look like a keyword.
    fn is_name_of_with(&self, index: usize) -> bool {
        self.tokens[index - 1].kind == Kind::Sign(',')
            || self.tokens[index - 1].is_word(&self.text, "recursive")
    }

    pub(super) fn word(&self, index: usize) -> String {
        match self.tokens.get(index) {
            Some(token) if token.kind == Kind::Word => token.text(&self.text).to_ascii_uppercase(),
            _ => String::new(),
        }
    }

    /// The tables named `read_model.<table>`, each once, in the order of their first use.
    pub(crate) fn tables(&self) -> Vec<String> {
        let mut tables = Vec::new();
        for place in self.places() {
            if !tables.contains(&place.name) {
                tables.push(place.name);
            }
        }
        tables
    }

    /// The text with every `read_model.<table>` replaced by what is given for the table.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
    pub(crate) fn map_tables(&self, name: impl Fn(&str) -> String) -> String {
        self.edited(self.table_edits(&name))
    }

    /// The same for a store where the table gets another name, not another schema: a table's bare name
    /// before a column (`cart_totals.items`) and the name of a created index are replaced too.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    pub(crate) fn rename_tables(&self, name: impl Fn(&str) -> String) -> String {
        let mut edits = self.table_edits(&name);
        edits.extend(self.qualifier_edits(&name));
        if let Some(created) = self.created().filter(|created| !created.in_read_model) {
            edits.push(Edit { text: name(&created.name), range: created.range });
        }
        self.edited(edits)
    }

    /// Puts `WITH batch AS (<sql>)` in front, on the first line, if the statement uses `batch`.
    pub(crate) fn with_batch(&self, sql: &str) -> String {
        let (text, first) = (&self.text, self.keyword());
        if !self.uses("batch") {
            return text.clone();
        }
        let sql = super::on_one_line(sql);
        if first == "WITH" {
            let recursive = self.word(1) == "RECURSIVE";
            let end = self.tokens[usize::from(recursive)].end;
            return format!("{} batch AS ({sql}),{}", &text[..end], &text[end..]);
        }
        if WITH_MAY_PRECEDE.contains(&first.as_str()) || first.is_empty() {
            return format!("WITH batch AS ({sql}) {text}");
        }
        text.clone()
    }

    /// Whether this name stands anywhere in the code.
    pub(crate) fn uses(&self, name: &str) -> bool {
        self.tokens.iter().any(|token| token.name(&self.text).as_deref() == Some(name))
    }

    /// Whether every parenthesis that opens closes, and none other.
    pub(crate) fn is_balanced(&self) -> bool {
        let mut depth = 0_i32;
        for token in &self.tokens {
            match token.kind {
                Kind::Sign('(') => depth += 1,
                Kind::Sign(')') => depth -= 1,
                _ => {}
            }
            if depth < 0 {
                return false;
            }
        }
        depth == 0
    }

    /// The line of the file for a byte in a text that was made from this statement.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    pub(crate) fn line_at_byte(&self, sent: &str, offset: usize) -> u32 {
        self.line + line_of(sent, offset) - 1
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.tokens.len()).filter_map(|index| self.place(index))
    }

    /// The table at a token, if `read_model . name` begins there.
    pub(super) fn place(&self, index: usize) -> Option<Place> {
        let is_dot = |index: usize| self.sign(index) == Some('.');
        let schema = self.tokens[index..].first()?;
        if schema.name(&self.text)? != SCHEMA || !is_dot(index + 1) {
            return None;
        }
        if index > 0 && is_dot(index - 1) {
            return None;
        }
        let table = self.tokens.get(index + 2)?;
        let name = table.name(&self.text)?;
        Some(Place { name, range: schema.start..table.end, next: index + 3 })
    }

    pub(super) fn sign(&self, index: usize) -> Option<char> {
        match self.tokens.get(index)?.kind {
            Kind::Sign(sign) => Some(sign),
            _ => None,
        }
    }

    fn table_edits(&self, name: &impl Fn(&str) -> String) -> Vec<Edit> {
        self.places().map(|place| Edit { text: name(&place.name), range: place.range }).collect()
    }

    /// Bare names of tables before a column, where no alias and no `WITH` has taken the name.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    fn qualifier_edits(&self, name: &impl Fn(&str) -> String) -> Vec<Edit> {
        let places: Vec<Place> = self.places().collect();
        let mut taken: Vec<String> = places.iter().filter_map(|place| self.alias(place)).collect();
        taken.extend(self.with_names());
        let mut edits = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let Some(found) = token.name(&self.text) else { continue };
            let is_table = places.iter().any(|place| place.name == found);
            let before_dot = self.sign(index + 1) == Some('.');
            let after_dot = index > 0 && self.sign(index - 1) == Some('.');
            if is_table && before_dot && !after_dot && !taken.contains(&found) {
                edits.push(Edit { text: name(&found), range: token.start..token.end });
            }
        }
        edits
    }

    /// What a table is called in its statement, if the statement says so.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    fn alias(&self, place: &Place) -> Option<String> {
        let token = match self.word(place.next).as_str() {
            "AS" => self.tokens.get(place.next + 1)?,
            _ => self.tokens.get(place.next)?,
        };
        token.name(&self.text)
    }

    /// Names that are followed by `AS (`.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    fn with_names(&self) -> impl Iterator<Item = String> {
        let named = (0..self.tokens.len())
            .filter(|index| self.word(index + 1) == "AS" && self.sign(index + 2) == Some('('));
        named.filter_map(|index| self.tokens[index].name(&self.text))
    }

    /// The text with pieces replaced. Newlines of what is replaced come behind its replacement.
    fn edited(&self, mut edits: Vec<Edit>) -> String {
        edits.sort_by_key(|edit| edit.range.start);
        let (mut text, mut at) = (String::with_capacity(self.text.len()), 0);
        for edit in edits {
            text.push_str(&self.text[at..edit.range.start]);
            text.push_str(&edit.text);
            let newlines = self.text[edit.range.clone()].matches('\n');
            newlines.for_each(|newline| text.push_str(newline));
            at = edit.range.end;
        }
        text.push_str(&self.text[at..]);
        text
    }
}
