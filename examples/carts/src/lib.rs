//! Carts: their events, the rules for changing them, and two read models.

mod details;
mod events;
mod rules;
mod summary;

use std::error::Error;

use everfold::{Position, Store, StoreOptions};
use tempfile::TempDir;

pub use details::{Details, Line, details};
pub use events::CartEvent;
pub use rules::{Cart, CartRules, Command, PIECES_MAX, Refusal};
pub use summary::{Status, Summary, Totals, summary_1, summary_2};

/// Opens the store of the URL that the program was given; without one, a file in a folder that goes
/// when the second value does.
///
/// # Errors
/// If the store cannot be opened, or has events already: these programs count on an empty one.
pub async fn open() -> Result<(Store, TempDir), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("carts.db").display());
    let mut options = StoreOptions::default();
    options.migrate = Some(true);
    let store = Store::open_with(&std::env::args().nth(1).unwrap_or(file), options).await?;
    if store.high_water_mark().await? > Position::START {
        return Err(format!("{} has events already; give an empty one", store.location()).into());
    }
    Ok((store, folder))
}
