//! Reading what generations and the readers' views look like from the catalog.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::layout::{Column, Layout, Shape, View, is_ours};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::names::readers;
use crate::store::postgres::projection::unit::{PostgresUnit, statement};

const SHAPES: &str = statement!("list_shapes");
const VIEWS: &str = statement!("list_views");
const PROJECTION: &str = "SELECT p.active_generation, p.namespace, p.name, \
        (SELECT r.target FROM everfold.rebuilds r WHERE r.projection = p.id AND r.finished_at IS NULL), \
        (SELECT max(g.id) FROM everfold.generations g WHERE g.projection = p.id AND g.status = 'spare') \
    FROM everfold.projections p WHERE p.id = $1";

/// A projection with its views.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) layout: Layout,
}

/// Reads a projection's layout. `search_path` is pg_catalog alone.
pub(super) async fn read(
    unit: &mut PostgresUnit<'_>,
    projection: i32,
) -> Result<Shown, StoreError> {
    let id: [Param<'_>; 1] = [(&projection, Type::INT4)];
    let rows = unit.ask(PROJECTION, &id).await?;
    let row = rows.first().ok_or_else(|| {
        let message = format!("there is no projection with the number {projection}");
        StoreError::new(StoreErrorKind::Missing, message)
    })?;
    let (namespace, name): (String, String) = (row.get(1), row.get(2));
    let shapes = shapes(&unit.ask(SHAPES, &id).await?);
    let schema = readers(&namespace);
    let params: [Param<'_>; 2] = [(&projection, Type::INT4), (&schema, Type::TEXT)];
    let views = views(&unit.ask(VIEWS, &params).await?);
    let (active, coming, spare) = (row.get(0), row.get(3), row.get(4));
    let layout = Layout { shapes, views, active, coming, spare, ..Layout::default() };
    Ok(Shown { name, namespace, layout })
}

fn shapes(rows: &[Row]) -> BTreeMap<i32, Shape> {
    let mut shapes = BTreeMap::new();
    for row in rows {
        let status: &str = row.get(2);
        let shape = shapes.entry(row.get(0)).or_insert_with(|| Shape {
            version: row.get::<_, i32>(1).unsigned_abs(),
            home: row.get(3),
            is_unfinished: ["building", "rebuilding", "spare"].contains(&status) || row.get(7),
            is_retired: status == "retired",
            tables: BTreeMap::new(),
        });
        shape.tables.insert(row.get(4), columns(row, 5, 6));
    }
    shapes
}

/// Those that we made. One that shows several tables is somebody else's.
fn views(rows: &[Row]) -> Vec<View> {
    let mut views: Vec<View> = Vec::new();
    let mut tables: BTreeMap<String, u32> = BTreeMap::new();
    for row in rows {
        let (name, table): (String, String) = (row.get(0), row.get(1));
        *tables.entry(name.clone()).or_default() += 1;
        let numbers = |text: &String| text.split(", ").filter_map(|id| id.parse().ok()).collect();
        let shown: Vec<String> = row.get(5);
        if is_ours(&name, &table) {
            let generations = row.get(2);
            let shown = shown.iter().map(numbers).collect();
            views.push(View { name, table, columns: columns(row, 3, 4), generations, shown });
        }
    }
    views.retain(|view| tables.get(&view.name) == Some(&1));
    views
}

fn columns(row: &Row, names: usize, kinds: usize) -> Vec<Column> {
    // NULL: a table without columns.
    let texts = |column: usize| row.get::<_, Option<Vec<String>>>(column).unwrap_or_default();
    texts(names).into_iter().zip(texts(kinds)).map(|(name, kind)| Column { name, kind }).collect()
}
