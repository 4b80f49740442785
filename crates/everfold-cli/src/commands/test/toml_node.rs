//! TOML with the lines that its parts stand on, read key by key so that every mistake has its place.

use std::fmt;

use jiff::Timestamp;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::nearest::nearest;

/// What is wrong, and on which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) line: usize,
    pub(super) message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// A table whose keys are all known.
pub(super) struct Node<'a> {
    /// What it is, for messages: `a case`.
    what: &'static str,
    pub(super) line: usize,
    /// In the order of the file.
    pub(super) entries: Vec<Entry<'a>>,
}

/// A key with its value.
pub(super) struct Entry<'a> {
    text: &'a str,
    pub(super) key: &'a str,
    pub(super) line: usize,
    value: &'a Spanned<DeValue<'a>>,
}

/// The table of a whole file, which must live as long as what is read from it.
pub(super) fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Mistake> {
    DeTable::parse(text).map_err(|error| Mistake {
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        message: format!("{}; mend it", error.message().replace('\n', ", ")),
    })
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text[..offset].matches('\n').count()
}

impl<'a> Node<'a> {
    /// A table with keys of these names only; any, if there are none.
    pub(super) fn new(
        text: &'a str,
        what: &'static str,
        line: usize,
        table: &'a DeTable<'a>,
        keys: &[&str],
    ) -> Result<Node<'a>, Mistake> {
        let mut places: Vec<_> = table.iter().collect();
        places.sort_by_key(|(key, _)| key.span().start);
        let entry = |(key, value): (&'a Spanned<_>, &'a Spanned<DeValue<'a>>)| {
            let line = line_of(text, key.span().start);
            let key: &'a std::borrow::Cow<'a, str> = key.get_ref();
            Entry { text, key, line, value }
        };
        let entries: Vec<Entry<'a>> = places.into_iter().map(entry).collect();
        let is_unknown = |entry: &&Entry<'_>| !keys.is_empty() && !keys.contains(&entry.key);
        if let Some(entry) = entries.iter().find(is_unknown) {
            let meant = match nearest(entry.key, keys.iter().copied()) {
                Some(known) => format!("did you mean {known}?"),
                None => format!("there are {}", keys.join(", ")),
            };
            return Err(entry.wrong(&format!("is not a key of {what}; {meant}")));
        }
        Ok(Node { what, line, entries })
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry<'a>> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(super) fn required(&self, key: &str, example: &str) -> Result<&Entry<'a>, Mistake> {
        let message = format!("{} has no {key}; add {example}", self.what);
        self.get(key).ok_or(Mistake { line: self.line, message })
    }
}

impl<'a> Entry<'a> {
    pub(super) fn wrong(&self, message: &str) -> Mistake {
        Mistake { line: self.line, message: format!("{} {message}", self.key) }
    }

    /// Text that is not empty.
    pub(super) fn text(&self) -> Result<&'a str, Mistake> {
        match self.value.get_ref() {
            DeValue::String(text) if !text.trim().is_empty() => Ok(text),
            _ => Err(self.wrong("must be a text that is not empty")),
        }
    }

    /// A text, or a list of some.
    pub(super) fn texts(&self) -> Result<Vec<&'a str>, Mistake> {
        let DeValue::Array(list) = self.value.get_ref() else { return Ok(vec![self.text()?]) };
        let text = |value: &'a Spanned<DeValue<'a>>| match value.get_ref() {
            DeValue::String(text) if !text.is_empty() => Ok(&**text),
            _ => Err(self.wrong("must be a text or a list of texts")),
        };
        let texts: Vec<&str> = list.iter().map(text).collect::<Result<_, _>>()?;
        if texts.is_empty() {
            return Err(self.wrong("is an empty list; leave it out"));
        }
        Ok(texts)
    }

    pub(super) fn number(&self) -> Result<u32, Mistake> {
        let number = match self.json()? {
            Value::Number(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()),
            _ => None,
        };
        number.filter(|n| *n > 0).ok_or_else(|| self.wrong("must be a whole number from 1"))
    }

    /// A time with its offset, quoted or not.
    pub(super) fn time(&self) -> Result<Timestamp, Mistake> {
        let text = match self.value.get_ref() {
            DeValue::Datetime(time) => time.to_string(),
            DeValue::String(text) => text.to_string(),
            _ => String::new(),
        };
        let wanted = "must be a time with its offset, such as 2026-11-15T10:00:00Z";
        text.parse().map_err(|_| self.wrong(wanted))
    }

    /// A list of tables, written as one or as `[[…]]`, each with its line.
    pub(super) fn tables(&self) -> Result<Vec<(usize, &'a DeTable<'a>)>, Mistake> {
        let wanted = || self.wrong("must be a list of tables: [[…]], or [{ … }, { … }]");
        let DeValue::Array(list) = self.value.get_ref() else { return Err(wanted()) };
        let table = |value: &'a Spanned<DeValue<'a>>| match value.get_ref() {
            DeValue::Table(table) => Ok((line_of(self.text, value.span().start), table)),
            _ => Err(wanted()),
        };
        list.iter().map(table).collect()
    }

    /// A table of any keys.
    pub(super) fn table(&self) -> Result<Node<'a>, Mistake> {
        match self.value.get_ref() {
            DeValue::Table(table) => Node::new(self.text, "a table", self.line, table, &[]),
            _ => Err(self.wrong("must be a table")),
        }
    }

    /// The value as JSON, which has what TOML has: times are texts there.
    pub(super) fn json(&self) -> Result<Value, Mistake> {
        json(self.value.get_ref()).ok_or_else(|| {
            self.wrong("has a number that JSON cannot have: 64 bits, neither inf nor nan")
        })
    }

    pub(super) fn object(&self) -> Result<Map<String, Value>, Mistake> {
        match self.json()? {
            Value::Object(object) => Ok(object),
            _ => Err(self.wrong("must be a table")),
        }
    }
}

fn json(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::from(&**text),
        DeValue::Boolean(truth) => Value::from(*truth),
        DeValue::Datetime(time) => Value::from(time.to_string()),
        DeValue::Integer(number) => {
            Value::from(i64::from_str_radix(number.as_str(), number.radix()).ok()?)
        }
        DeValue::Float(number) => {
            Value::Number(serde_json::Number::from_f64(number.as_str().parse().ok()?)?)
        }
        DeValue::Array(list) => {
            list.iter().map(|value| json(value.get_ref())).collect::<Option<Vec<_>>>()?.into()
        }
        DeValue::Table(table) => {
            let pair =
                |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                    Some((key.get_ref().to_string(), json(value.get_ref())?))
                };
            table.iter().map(pair).collect::<Option<Map<_, _>>>()?.into()
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_of_json() {
        let text = "a = { n = -1_000, hex = 0x1F, f = 1.5, t = true, s = 'x', l = [1, 'a'],\
                    d = 2026-11-15, o = 2026-11-15T10:00:00Z }";
        let table = parse(text).unwrap();
        let node = Node::new(text, "it", 1, table.get_ref(), &[]).unwrap();
        assert_eq!(
            node.entries[0].json().unwrap(),
            json!({ "n": -1000, "hex": 31, "f": 1.5, "t": true, "s": "x", "l": [1, "a"],
                    "d": "2026-11-15", "o": "2026-11-15T10:00:00Z" })
        );
        for wrong in ["inf", "nan", "99999999999999999999"] {
            let text = format!("a = {wrong}");
            let table = parse(&text).unwrap();
            let node = Node::new(&text, "it", 1, table.get_ref(), &[]).unwrap();
            assert!(node.entries[0].json().is_err(), "{wrong}");
        }
    }
}
