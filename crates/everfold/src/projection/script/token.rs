//! SQL cut into tokens, as far as both dialects need it: what is code, what is a string, a quoted
//! name or a comment. Nothing here knows grammar.

use super::ScriptError;

/// What a piece of SQL is. Comments and space are no tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name or a keyword without quotes.
    Word,
    /// `"…"`, `` `…` `` or `[…]`.
    QuotedName,
    /// `'…'`, `E'…'` or `$tag$…$tag$`.
    Text,
    /// A number or a parameter such as `$1`.
    Number,
    /// One character of anything else.
    Sign(char),
}

/// A piece of SQL and where it stands, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Token {
    pub(super) fn text<'a>(&self, sql: &'a str) -> &'a str {
        &sql[self.start..self.end]
    }

    /// Whether it is this keyword (or name), however it is written. Not for quoted names.
    pub(super) fn is_word(&self, sql: &str, word: &str) -> bool {
        self.kind == Kind::Word && self.text(sql).eq_ignore_ascii_case(word)
    }

    /// The name that it stands for: lower case without quotes, as it is within them.
    pub(super) fn name(&self, sql: &str) -> Option<String> {
        match self.kind {
            Kind::Word => Some(self.text(sql).to_ascii_lowercase()),
            Kind::QuotedName => Some(unquoted(self.text(sql))),
            _ => None,
        }
    }
}

fn unquoted(quoted: &str) -> String {
    let inside = &quoted[1..quoted.len() - 1];
    match quoted.as_bytes()[0] {
        b'"' => inside.replace("\"\"", "\""),
        b'`' => inside.replace("``", "`"),
        _ => inside.to_owned(),
    }
}

/// Cuts SQL into tokens.
///
/// # Errors
/// If a quote or a comment does not end.
pub(super) fn tokens(sql: &str) -> Result<Vec<Token>, ScriptError> {
    let mut lexer = Lexer { sql, at: 0, tokens: Vec::new(), arrays: 0 };
    while lexer.at < sql.len() {
        lexer.next()?;
    }
    Ok(lexer.tokens)
}

/// The line of a place in a text, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> u32 {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count() as u32
}

struct Lexer<'a> {
    sql: &'a str,
    at: usize,
    tokens: Vec<Token>,
    /// Open brackets of PostgreSQL's arrays; those within them are no names.
    arrays: usize,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.sql[self.at..]
    }

    fn next(&mut self) -> Result<(), ScriptError> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(()) };
        match first {
            _ if is_space(first) => self.at += first.len_utf8(),
            '-' if rest.starts_with("--") => {
                self.at += rest.find('\n').unwrap_or(rest.len());
            }
            '/' if rest.starts_with("/*") => self.comment()?,
            '\'' => self.string(false)?,
            'e' | 'E' if rest[1..].starts_with('\'') => self.string(true)?,
            '"' | '`' => self.quoted_name(first)?,
            '[' if self.is_bracketed_name() => self.bracketed_name()?,
            '$' => self.dollar()?,
            _ if is_name_start(first) => self.push(Kind::Word, name_length(rest)),
            _ if first.is_ascii_digit() => self.push(Kind::Number, number_length(rest)),
            _ => {
                match first {
                    '[' => self.arrays += 1,
                    ']' => self.arrays = self.arrays.saturating_sub(1),
                    _ => {}
                }
                self.push(Kind::Sign(first), first.len_utf8());
            }
        }
        Ok(())
    }

    fn push(&mut self, kind: Kind, length: usize) {
        let end = self.at + length;
        self.tokens.push(Token { kind, start: self.at, end });
        self.at = end;
    }

    /// Comments nest, as in PostgreSQL.
    fn comment(&mut self) -> Result<(), ScriptError> {
        let (start, mut depth) = (self.at, 0_usize);
        loop {
            let rest = self.rest();
            if rest.starts_with("/*") {
                depth += 1;
                self.at += 2;
            } else if rest.starts_with("*/") {
                depth -= 1;
                self.at += 2;
            } else {
                match rest.chars().next() {
                    Some(character) => self.at += character.len_utf8(),
                    None => return Err(self.unterminated(start, "comment /*", "*/")),
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// A string, with backslashes if it began with `E`. A doubled quote is part of it.
    fn string(&mut self, escapes: bool) -> Result<(), ScriptError> {
        let start = self.at;
        let mut at = start + if escapes { 2 } else { 1 };
        let bytes = self.sql.as_bytes();
        loop {
            match bytes.get(at) {
                None => return Err(self.unterminated(start, "string", "'")),
                Some(b'\\') if escapes => at += 2,
                Some(b'\'') if bytes.get(at + 1) == Some(&b'\'') => at += 2,
                Some(b'\'') => match self.continued(at + 1).filter(|_| escapes) {
                    Some(next) => at = next,
                    None => break,
                },
                Some(_) => at += 1,
            }
        }
        self.push(Kind::Text, at + 1 - start);
        Ok(())
    }

    /// Where a string goes on that another line continues: its backslashes count there too.
    fn continued(&self, after: usize) -> Option<usize> {
        let rest = &self.sql[after..];
        let space = rest.len() - rest.trim_start_matches(is_space).len();
        let goes_on = rest[..space].contains('\n') && rest[space..].starts_with('\'');
        goes_on.then_some(after + space + 1)
    }

    fn quoted_name(&mut self, quote: char) -> Result<(), ScriptError> {
        let start = self.at;
        let mut at = start + 1;
        loop {
            let Some(found) = self.sql[at..].find(quote) else {
                let text = quote.to_string();
                return Err(self.unterminated(start, "quoted name", &text));
            };
            at += found + 1;
            if !self.sql[at..].starts_with(quote) {
                break;
            }
            at += 1;
        }
        self.push(Kind::QuotedName, at - start);
        Ok(())
    }

    /// Whether `[` begins a name of SQLite and not an array of PostgreSQL: it stands apart from what
    /// is before it, and a letter follows.
    fn is_bracketed_name(&self) -> bool {
        let before = self.tokens.last();
        let touches = before.is_some_and(|token| {
            token.end == self.at && !matches!(token.kind, Kind::Sign(sign) if !")]".contains(sign))
        });
        let of_array = before.is_some_and(|token| token.is_word(self.sql, "array"));
        let letter = self.rest()[1..].chars().next().is_some_and(is_name_start);
        self.arrays == 0 && !touches && !of_array && letter
    }

    fn bracketed_name(&mut self) -> Result<(), ScriptError> {
        match self.rest().find(']') {
            Some(found) => self.push(Kind::QuotedName, found + 1),
            None => return Err(self.unterminated(self.at, "name in brackets", "]")),
        }
        Ok(())
    }

    /// `$tag$…$tag$`, `$1`, or a sign.
    fn dollar(&mut self) -> Result<(), ScriptError> {
        let (start, rest) = (self.at, self.rest());
        let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            self.push(Kind::Number, 1 + digits);
            return Ok(());
        }
        let tag = rest[1..].find(|character| !is_tag(character)).unwrap_or(rest.len() - 1) + 1;
        if !rest[tag..].starts_with('$') {
            self.push(Kind::Sign('$'), 1);
            return Ok(());
        }
        let quote = rest[..=tag].to_owned();
        match rest[quote.len()..].find(&quote) {
            Some(found) => self.push(Kind::Text, found + 2 * quote.len()),
            None => return Err(self.unterminated(start, "string", &quote)),
        }
        Ok(())
    }

    fn unterminated(&self, start: usize, what: &str, end: &str) -> ScriptError {
        ScriptError {
            line: line_of(self.sql, start),
            message: format!("the {what} that begins here does not end; close it with {end}"),
        }
    }
}

/// Space, and the mark that some editors put at the begin of a file.
fn is_space(character: char) -> bool {
    character.is_ascii_whitespace() || character == '\u{b}' || character == '\u{feff}'
}

fn is_name_start(character: char) -> bool {
    character.is_ascii_alphabetic() || character == '_' || is_foreign(character)
}

fn is_tag(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || is_foreign(character)
}

fn is_foreign(character: char) -> bool {
    !character.is_ascii() && character != '\u{feff}'
}

fn name_length(rest: &str) -> usize {
    rest.find(|character| !is_tag(character) && character != '$').unwrap_or(rest.len())
}

fn number_length(rest: &str) -> usize {
    let mut length = 0;
    let mut characters = rest.chars().peekable();
    while let Some(character) = characters.next() {
        let digit_follows = characters.peek().is_some_and(char::is_ascii_digit);
        let belongs = is_tag(character) || (character == '.' && digit_follows);
        if !belongs {
            break;
        }
        length += character.len_utf8();
    }
    length
}
