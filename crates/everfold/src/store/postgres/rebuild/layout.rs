//! What the readers' views show: which generations, and when. Nothing here asks the database.
//!
//! A view has a part for each generation that readers may see, now or in a snapshot that is older than
//! a switch, and each part is shown while the active generation is one of a few. So a switch changes
//! one row and no view. Where only one generation is left there is no condition.
//!
//! A table whose columns are those of the view, or those and more at the end, or those but for some at
//! the end, is shown by the view of its name. Any other is shown by `<table>_v<version>`, and the view of
//! its name goes on showing what it showed.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::postgres::projection::names::{quoted, table};

/// Longest name in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

/// A column of a table or a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// Type and collation, as SQL.
    pub(super) kind: String,
}

/// A generation with its tables.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) version: u32,
    pub(super) home: String,
    /// It is being filled, or was given up before it was: only shown if it is the active one.
    pub(super) is_unfinished: bool,
    pub(super) is_retired: bool,
    pub(super) tables: BTreeMap<String, Vec<Column>>,
}

/// A view of readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    pub(super) name: String,
    /// What it shows of each generation.
    pub(super) table: String,
    pub(super) columns: Vec<Column>,
    /// In rising order.
    pub(super) generations: Vec<i32>,
    /// For each of them, while which generations are active it is shown. Empty: always.
    pub(super) shown: Vec<Vec<i32>>,
}

/// What is to be done with a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Create(View),
    /// Columns that it has stay as they are.
    Replace(View),
    /// Nothing of what it showed is left, and what readers see now has other columns.
    Renew(View),
    Drop(String),
}

impl Change {
    pub(super) fn name(&self) -> &str {
        match self {
            Change::Create(view) | Change::Replace(view) | Change::Renew(view) => &view.name,
            Change::Drop(name) => name,
        }
    }
}

/// The views of a projection as they are, and what is to come.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) shapes: BTreeMap<i32, Shape>,
    pub(super) views: Vec<View>,
    /// What readers see.
    pub(super) active: Option<i32>,
    /// A generation that is to be shown as soon as it is the active one.
    pub(super) adding: Option<i32>,
    /// A generation made ahead of time, which the next rebuild fills: shown like one that is added, by
    /// views that are there.
    pub(super) spare: Option<i32>,
    /// The target of a rebuild that is open: it may be active soon, whether or not views are widened.
    pub(super) coming: Option<i32>,
    /// A generation that nobody sees any more.
    pub(super) removing: Option<i32>,
}

impl Layout {
    /// What is left to do. An error says why a table cannot be shown.
    pub(super) fn changes(&self) -> Result<Vec<Change>, String> {
        let mut changes = Vec::new();
        for view in &self.views {
            changes.extend(self.change_of(view));
        }
        if let Some(adding) = self.adding {
            changes.extend(self.new_views(adding)?);
        }
        Ok(changes)
    }

    fn change_of(&self, view: &View) -> Option<Change> {
        let mut generations = view.generations.clone();
        generations.retain(|id| Some(*id) != self.removing);
        let added = [self.adding, self.spare].into_iter().flatten();
        generations.extend(added.filter(|id| self.joins(view, *id)));
        generations.sort_unstable();
        generations.dedup();
        if !generations.is_empty() {
            let wanted = self.view(&view.name, &view.table, &view.columns, generations);
            return (wanted != *view).then_some(Change::Replace(wanted));
        }
        let columns = match self.active.filter(|_| view.name == view.table) {
            Some(active) => self.columns(active, &view.table),
            None => None,
        };
        Some(match columns {
            Some(columns) => {
                let like_it =
                    self.spare.filter(|id| self.columns(*id, &view.table) == Some(columns));
                let generations = self.active.into_iter().chain(like_it).collect();
                Change::Renew(self.view(&view.name, &view.table, columns, generations))
            }
            None => Change::Drop(view.name.clone()),
        })
    }

    /// Whether a view that is there can show a generation, and is the one to do it.
    fn joins(&self, view: &View, generation: i32) -> bool {
        let Some(shape) = self.shapes.get(&generation) else { return false };
        let named = view.name == view.table || view.name == versioned(&view.table, shape.version);
        let columns = shape.tables.get(&view.table);
        named && columns.is_some_and(|columns| fit(columns, &view.columns))
    }

    fn new_views(&self, adding: i32) -> Result<Vec<Change>, String> {
        let Some(shape) = self.shapes.get(&adding) else { return Ok(Vec::new()) };
        let mut new = Vec::new();
        for (name, columns) in &shape.tables {
            let called = |called: &str| self.views.iter().find(|view| view.name == called);
            let own = match called(name) {
                Some(view) if self.joins(view, adding) => continue,
                Some(_) => versioned(name, shape.version),
                None => name.clone(),
            };
            match called(&own) {
                Some(view) if self.joins(view, adding) => continue,
                Some(view) => {
                    return Err(format!(
                        "the view {own} would have to show the table {name}, but it shows {} of \
                         another generation with other columns; remove that generation first",
                        view.table
                    ));
                }
                None => new.push(Change::Create(self.view(&own, name, columns, vec![adding]))),
            }
        }
        Ok(new)
    }

    fn columns(&self, generation: i32, table: &str) -> Option<&Vec<Column>> {
        self.shapes.get(&generation)?.tables.get(table)
    }

    fn view(&self, name: &str, table: &str, columns: &[Column], generations: Vec<i32>) -> View {
        let of_each = generations.iter().filter_map(|id| self.columns(*id, table));
        let longest = of_each.map(Vec::as_slice).chain([columns]).max_by_key(|all| all.len());
        View {
            name: name.to_owned(),
            table: table.to_owned(),
            columns: longest.unwrap_or_default().to_vec(),
            shown: self.shown(&generations),
            generations,
        }
    }

    /// While which generations are active each of these is shown; nothing if there is but one, always.
    fn shown(&self, generations: &[i32]) -> Vec<Vec<i32>> {
        let mut shown: BTreeMap<i32, Vec<i32>> =
            generations.iter().map(|id| (*id, Vec::new())).collect();
        // Where nothing is active nothing is shown.
        let mut always = self.active.is_some();
        for active in self.may_be_active(generations) {
            match self.shown_for(generations, active).and_then(|id| shown.get_mut(&id)) {
                Some(shown) => shown.push(active),
                None => always = false,
            }
        }
        if generations.len() == 1 && always {
            return Vec::new();
        }
        shown.into_values().collect()
    }

    /// Those that are the active one, were it in a snapshot that may be left, or will be.
    fn may_be_active(&self, generations: &[i32]) -> BTreeSet<i32> {
        // What is retired and taken out of the views is in no snapshot any more.
        let seen = |id: &i32| self.views.iter().any(|view| view.generations.contains(id));
        let finished = self
            .shapes
            .iter()
            .filter(|(id, shape)| !shape.is_unfinished && (!shape.is_retired || seen(id)));
        let mut all: BTreeSet<i32> = finished.map(|(id, _)| *id).collect();
        all.extend(generations.iter().copied());
        all.extend([self.active, self.adding, self.spare, self.coming].into_iter().flatten());
        all.retain(|id| Some(*id) != self.removing);
        all
    }

    /// What of these is shown while that one is active: itself, or what was shown before it.
    fn shown_for(&self, generations: &[i32], active: i32) -> Option<i32> {
        if generations.contains(&active) {
            return Some(active);
        }
        if [self.adding, self.spare, self.coming].contains(&Some(active))
            && let Some(now) = self.active.filter(|now| *now != active)
        {
            return self.shown_for(generations, now);
        }
        let whole = |id: &&i32| {
            Some(**id) == self.active || self.shapes.get(id).is_some_and(|s| !s.is_unfinished)
        };
        let earlier = generations.iter().filter(|id| **id < active).rfind(whole);
        earlier.or_else(|| generations.iter().find(whole)).copied()
    }

    /// A view's query.
    pub(super) fn query(&self, view: &View, projection: i32) -> String {
        let part = |(place, id): (usize, &i32)| {
            let shape = &self.shapes[id];
            let own = shape.tables.get(&view.table).map(Vec::as_slice).unwrap_or_default();
            let column = |(place, column): (usize, &Column)| match own.get(place) {
                Some(_) => quoted(&column.name),
                None => format!("NULL::{} AS {}", column.kind, quoted(&column.name)),
            };
            let columns: Vec<String> = view.columns.iter().enumerate().map(column).collect();
            let from = table(&shape.home, &view.table);
            let select = format!("SELECT {} FROM {from}", columns.join(", "));
            let Some(shown) = view.shown.get(place) else { return select };
            let shown: Vec<String> = shown.iter().map(i32::to_string).collect();
            format!(
                "{select} WHERE (SELECT p.active_generation FROM everfold.projections p \
                 WHERE p.id = {projection}) = ANY (ARRAY[{}])",
                shown.join(", ")
            )
        };
        let parts: Vec<String> = view.generations.iter().enumerate().map(part).collect();
        parts.join(" UNION ALL ")
    }
}

/// Whether one of them is the other with more at its end.
fn fit(one: &[Column], other: &[Column]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}

/// The name of a view for a version whose columns do not fit.
pub(super) fn versioned(table: &str, version: u32) -> String {
    let end = format!("_v{version}");
    let mut most = table.len().min(NAME_BYTES_MAX - end.len());
    while !table.is_char_boundary(most) {
        most -= 1;
    }
    format!("{}{end}", &table[..most])
}

/// Whether a view of this name is one that we make for a table.
pub(super) fn is_ours(view: &str, table: &str) -> bool {
    let version = view.rsplit_once("_v").and_then(|(_, version)| version.parse().ok());
    view == table || version.is_some_and(|version| view == versioned(table, version))
}
