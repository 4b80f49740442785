//! A store of its own for each test, removed afterwards.

use serde_json::Value;

use crate::projection::script::Script;
use crate::store::StoreUrl;

/// Where a test runs.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// Files in the system's folder for such.
    TempFile,
    /// Beside what this URL names.
    Beside(String),
}

/// An empty store.
pub(super) struct Scratch {
    url: String,
    keep: Keep,
}

enum Keep {
    #[cfg(feature = "sqlite")]
    Folder(std::path::PathBuf),
    #[cfg(feature = "postgres")]
    Database { server: String, name: String },
}

impl Scratch {
    pub(super) async fn create(place: &Place) -> Result<Scratch, String> {
        match place {
            Place::TempFile => Self::folder(&std::env::temp_dir()),
            Place::Beside(url) => match StoreUrl::parse(url).map_err(|error| error.to_string())? {
                #[cfg(feature = "sqlite")]
                StoreUrl::Sqlite(file) => match file.parent() {
                    Some(folder) if !folder.as_os_str().is_empty() => Self::folder(folder),
                    _ => Self::folder(std::path::Path::new(".")),
                },
                #[cfg(feature = "postgres")]
                StoreUrl::Postgres(server) => {
                    let name = format!("everfold_test_{}", uuid::Uuid::now_v7().simple());
                    let url = crate::store::postgres::create_database(&server, &name).await?;
                    Ok(Scratch { url, keep: Keep::Database { server, name } })
                }
            },
        }
    }

    #[cfg(feature = "sqlite")]
    fn folder(parent: &std::path::Path) -> Result<Scratch, String> {
        let folder = parent.join(format!("everfold-test-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&folder)
            .map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
        let url = format!("sqlite:{}", folder.join("store.db").display());
        Ok(Scratch { url, keep: Keep::Folder(folder) })
    }

    #[cfg(not(feature = "sqlite"))]
    fn folder(_: &std::path::Path) -> Result<Scratch, String> {
        Err("this build has no SQLite (feature `sqlite`): name a server with on(url)".to_owned())
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The rows of a query, with `read_model.<table>` for tables on either kind of store.
    pub(super) async fn rows(&self, sql: &str) -> Result<Vec<Vec<Value>>, String> {
        let script = Script { file: "query".into(), text: sql.to_owned() };
        let statements = script.statements().map_err(|error| error.to_string())?;
        let [query] = statements.as_slice() else {
            return Err(format!("it has {} statements, wanted is one query", statements.len()));
        };
        match &self.keep {
            #[cfg(feature = "sqlite")]
            Keep::Folder(folder) => {
                let query = query.rename_tables(|table| format!("read_model_{table}"));
                crate::store::sqlite::query_rows(&folder.join("store.db"), &query)
            }
            #[cfg(feature = "postgres")]
            Keep::Database { .. } => {
                let query = query.map_tables(|table| format!("read_model.{table}"));
                crate::store::postgres::query_rows(&self.url, &query).await
            }
        }
    }

    /// The rows of a table, these columns of them, in any order.
    pub(super) async fn table(
        &self,
        table: &str,
        columns: &[String],
    ) -> Result<Vec<Vec<Value>>, String> {
        match &self.keep {
            #[cfg(feature = "sqlite")]
            Keep::Folder(folder) => {
                crate::store::sqlite::table_rows(&folder.join("store.db"), table, columns)
            }
            #[cfg(feature = "postgres")]
            Keep::Database { .. } => {
                crate::store::postgres::table_rows(&self.url, table, columns).await
            }
        }
    }

    /// The columns of a table, in their order.
    pub(super) async fn columns(&self, table: &str) -> Result<Vec<String>, String> {
        match &self.keep {
            #[cfg(feature = "sqlite")]
            Keep::Folder(folder) => {
                crate::store::sqlite::table_columns(&folder.join("store.db"), table)
            }
            #[cfg(feature = "postgres")]
            Keep::Database { .. } => crate::store::postgres::table_columns(&self.url, table).await,
        }
    }

    /// Makes it empty again, as nothing has it open any more. On a server that takes a fraction of
    /// what another database would.
    pub(super) async fn empty(&self) -> Result<(), String> {
        match &self.keep {
            #[cfg(feature = "sqlite")]
            Keep::Folder(folder) => std::fs::remove_dir_all(folder)
                .and_then(|()| std::fs::create_dir(folder))
                .map_err(|error| format!("cannot empty {}: {error}", folder.display())),
            #[cfg(feature = "postgres")]
            Keep::Database { name, .. } => {
                crate::store::postgres::drop_schemas(&self.url, name).await
            }
        }
    }

    pub(super) async fn remove(self) -> Result<(), String> {
        match &self.keep {
            #[cfg(feature = "sqlite")]
            Keep::Folder(folder) => std::fs::remove_dir_all(folder)
                .map_err(|error| format!("cannot remove {}: {error}", folder.display())),
            #[cfg(feature = "postgres")]
            Keep::Database { server, name } => {
                crate::store::postgres::drop_database(server, name).await
            }
        }
    }
}

/// A run that was given up half-way, by a panic for example, leaves no files. A database needs a
/// connection to be dropped, which is not to be had here.
impl Drop for Scratch {
    fn drop(&mut self) {
        match &self.keep {
            #[cfg(feature = "sqlite")]
            Keep::Folder(folder) => {
                // It is gone already, as a rule.
                let _ = std::fs::remove_dir_all(folder);
            }
            #[cfg(feature = "postgres")]
            Keep::Database { .. } => {}
        }
    }
}
