//! What a statement does, as far as its words tell: what it creates, changes and returns.

use std::ops::Range;

use super::statement::{Place, Statement};
use super::token::Kind;

/// Words that may stand between `CREATE` and what is created.
const MODIFIERS: [&str; 9] =
    ["OR", "REPLACE", "UNIQUE", "UNLOGGED", "TEMP", "TEMPORARY", "GLOBAL", "LOCAL", "RECURSIVE"];

/// A table, an index or something else that a statement creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Created {
    /// The keyword in upper case: `TABLE`, `INDEX`, `VIEW` …
    pub(crate) what: String,
    /// Lower case unless it was quoted.
    pub(crate) name: String,
    /// Whether `read_model.` stands before the name.
    pub(crate) in_read_model: bool,
    /// Where the name stands in the statement's text, with the schema before it.
    pub(crate) range: Range<usize>,
}

/// A table that a statement writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    /// Lower case unless it was quoted; without a schema.
    pub(super) name: String,
    pub(super) in_read_model: bool,
}

impl Statement {
    /// What the statement creates: `CREATE [UNIQUE …] TABLE|INDEX|… [IF NOT EXISTS] name`.
    pub(crate) fn created(&self) -> Option<Created> {
        if self.keyword() != "CREATE" {
            return None;
        }
        let (what, mut at) = (self.creates(), self.creates_at() + 1);
        for word in ["CONCURRENTLY", "IF", "NOT", "EXISTS"] {
            at += usize::from(self.word(at) == word);
        }
        // An index may go without a name: `CREATE INDEX ON …`.
        if self.word(at) == "ON" {
            return None;
        }
        if let Some(Place { name, range, .. }) = self.place(at) {
            return Some(Created { what, name, in_read_model: true, range });
        }
        let start = self.tokens.get(at)?.start;
        // Another schema may stand before the name.
        while self.sign(at + 1) == Some('.') {
            at += 2;
        }
        let token = self.tokens.get(at)?;
        let name = token.name(&self.text)?;
        Some(Created { what, name, in_read_model: false, range: start..token.end })
    }

    /// Whether it creates an index that is not unique.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
    pub(crate) fn creates_plain_index(&self) -> bool {
        self.keyword() == "CREATE" && self.word(1) == "INDEX"
    }

    /// What kind of thing is created, in upper case: `TABLE`, `MATERIALIZED`, `FUNCTION` …
    pub(super) fn creates(&self) -> String {
        self.word(self.creates_at())
    }

    fn creates_at(&self) -> usize {
        let modifies = |index: &usize| MODIFIERS.contains(&self.word(*index).as_str());
        (1..self.tokens.len()).find(|index| !modifies(index)).unwrap_or(1)
    }

    /// Whether a word stands there that no parentheses enclose.
    pub(super) fn has_word(&self, word: &str) -> bool {
        let mut depth = 0_i32;
        self.tokens.iter().any(|token| {
            match token.kind {
                Kind::Sign('(') => depth += 1,
                Kind::Sign(')') => depth -= 1,
                _ => {}
            }
            depth == 0 && token.is_word(&self.text, word)
        })
    }

    /// The table of `ALTER TABLE read_model.<table> …`.
    pub(super) fn altered_table(&self) -> Option<String> {
        if self.word(0) != "ALTER" || self.word(1) != "TABLE" {
            return None;
        }
        let mut at = 2;
        for word in ["IF", "EXISTS", "ONLY"] {
            at += usize::from(self.word(at) == word);
        }
        self.place(at).map(|place| place.name)
    }

    /// The tables that are written to, also within `WITH`.
    pub(super) fn written(&self) -> Vec<Written> {
        (0..self.tokens.len()).filter_map(|index| self.written_at(index)).collect()
    }

    /// The table, if at this word something begins that writes one.
    fn written_at(&self, index: usize) -> Option<Written> {
        let word = self.word(index);
        let mut at = index + 1;
        // SQLite: INSERT OR REPLACE INTO, UPDATE OR IGNORE.
        if self.word(at) == "OR" {
            at += 2;
        }
        match (word.as_str(), self.word(at).as_str()) {
            ("INSERT" | "REPLACE" | "MERGE", "INTO") | ("DELETE", "FROM") => at += 1,
            ("UPDATE", _) => {}
            _ => return None,
        }
        at += usize::from(self.word(at) == "ONLY");
        let (written, next) = match self.place(at) {
            Some(Place { name, next, .. }) => (Written { name, in_read_model: true }, next),
            None => {
                while self.sign(at + 1) == Some('.') {
                    at += 2;
                }
                let name = self.tokens.get(at)?.name(&self.text)?;
                (Written { name, in_read_model: false }, at + 1)
            }
        };
        // Others begin with UPDATE too: DO UPDATE SET, FOR UPDATE OF, a column of that name.
        let sets = || (next..next + 3).any(|index| self.word(index) == "SET");
        (word != "UPDATE" || (written.name != "set" && sets())).then_some(written)
    }

    /// A parameter such as `$1`, if there is one.
    pub(crate) fn parameter(&self) -> Option<&str> {
        let numbers = self.tokens.iter().filter(|token| token.kind == Kind::Number);
        numbers.map(|token| token.text(&self.text)).find(|text| text.starts_with('$'))
    }

    /// What SQLite takes for a parameter: `?`, `?1`, `:name`, `@name`, `$name`. PostgreSQL has
    /// operators and strings that look like it.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    pub(super) fn sqlite_parameter(&self) -> Option<&str> {
        self.tokens.iter().enumerate().find_map(|(index, token)| {
            let follows = self.tokens.get(index + 1).filter(|next| next.start == token.end);
            let name = follows.filter(|next| matches!(next.kind, Kind::Word | Kind::Number));
            let end = name.map_or(token.end, |name| name.end);
            let cast = index > 0 && self.sign(index - 1) == Some(':');
            let is_one = match token.kind {
                Kind::Sign('?') => true,
                Kind::Sign(':') => name.is_some() && !cast,
                Kind::Sign('@' | '$') => name.is_some(),
                // What PostgreSQL reads as a string.
                Kind::Text => token.text(&self.text).starts_with('$'),
                _ => false,
            };
            is_one.then_some(&self.text[token.start..end])
        })
    }
}
