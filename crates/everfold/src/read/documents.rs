//! Reading the documents of a document projection: by key, by the values of fields, all in key
//! order.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Position;
use crate::error::ProjectionError;
use crate::projection::ProjectionKind;
use crate::projection::builder::check_path;
use crate::store::{DocumentQuery, Store, StoredDocument};

/// Documents fetched at once.
const PAGE: usize = 500;

/// A document, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Document<T> {
    /// Its key: the stream's id, unless the projection has another key.
    pub key: String,
    /// The document.
    pub document: T,
    /// The last event that was folded into it.
    pub position: Position,
}

/// A read of a projection's documents, made by [`Store::documents`].
///
/// It sees what readers see: the active generation. Each page is read at one moment; between two
/// pages the projection may move on.
#[must_use = "a read does nothing until its documents are asked for"]
pub struct ReadDocuments<T> {
    store: Store,
    name: String,
    fields: Vec<(String, Value)>,
    after: Option<String>,
    limit: u64,
    /// The first thing that is wrong with what was asked for.
    wrong: Option<String>,
    document: PhantomData<fn() -> T>,
}

// By hand: neither needs anything of `T`.
impl<T> Clone for ReadDocuments<T> {
    fn clone(&self) -> Self {
        ReadDocuments {
            store: self.store.clone(),
            name: self.name.clone(),
            fields: self.fields.clone(),
            after: self.after.clone(),
            limit: self.limit,
            wrong: self.wrong.clone(),
            document: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for ReadDocuments<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("ReadDocuments");
        f.field("projection", &self.name).field("fields", &self.fields);
        f.field("after", &self.after).field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Store {
    /// Reads the documents of a document projection.
    ///
    /// ```
    /// # use everfold::{DocumentProjection, ExpectedVersion, NewEvent, Projection, RecordedEvent, Store};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)]
    /// # enum OrderEvent { Placed { city: String } }
    /// #[derive(Debug, PartialEq, Serialize, Deserialize)]
    /// struct Order {
    ///     city: String,
    /// }
    /// # struct Orders;
    /// # impl DocumentProjection for Orders {
    /// #     type Event = OrderEvent;
    /// #     type Document = Order;
    /// #     fn evolve(&self, _: Option<Order>, event: &OrderEvent, _: &RecordedEvent) -> Option<Order> {
    /// #         let OrderEvent::Placed { city } = event;
    /// #         Some(Order { city: city.clone() })
    /// #     }
    /// # }
    /// # #[cfg(feature = "sqlite")]
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    /// # let store = Store::open(&url).await?;
    /// let orders = Projection::document("orders", 1, Orders).inline().index("city").build()?;
    /// store.register(orders).await?;
    /// for (order, city) in [("order-1", "Bern"), ("order-2", "Ghent"), ("order-3", "Bern")] {
    ///     let placed = NewEvent::from_event(&OrderEvent::Placed { city: city.into() })?;
    ///     store.append(order, ExpectedVersion::NoStream, [placed]).await?;
    /// }
    ///
    /// let one = store.documents::<Order>("orders").get("order-2").await?;
    /// assert_eq!(one, Some(Order { city: "Ghent".into() }));
    ///
    /// let in_bern = store.documents::<Order>("orders").find("city", "Bern").collect().await?;
    /// assert_eq!(in_bern.len(), 2);
    /// assert_eq!(in_bern[1].key, "order-3");
    /// # Ok(()) }
    /// # #[cfg(not(feature = "sqlite"))]
    /// # fn main() {}
    /// ```
    pub fn documents<T: DeserializeOwned>(
        &self,
        projection: impl Into<String>,
    ) -> ReadDocuments<T> {
        ReadDocuments {
            store: self.clone(),
            name: projection.into(),
            fields: Vec::new(),
            after: None,
            limit: u64::MAX,
            wrong: None,
            document: PhantomData,
        }
    }
}

impl<T: DeserializeOwned> ReadDocuments<T> {
    /// Only documents whose field at this path (`customer.city`) has this value: a text, a number, a
    /// boolean, or whatever is written as one. Several must all hold. An
    /// [`index`](crate::ProjectionBuilder::index) on the path is used; without one all documents are
    /// looked at.
    pub fn find(mut self, path: impl Into<String>, value: impl Serialize) -> Self {
        let path = path.into();
        let wrong = match (check_path(&path), serde_json::to_value(value)) {
            (Err(message), _) => Some(message),
            (_, Err(error)) => Some(format!("the value for {path} is not JSON: {error}")),
            (_, Ok(Value::Null | Value::Array(_) | Value::Object(_))) => Some(format!(
                "the value for {path} is null, a list or an object; only texts, numbers and \
                 booleans can be looked for"
            )),
            (_, Ok(value)) => {
                self.fields.push((path, value));
                None
            }
        };
        self.wrong = self.wrong.or(wrong);
        self
    }

    /// Only documents after this key, in the order of keys (of their bytes).
    pub fn after(mut self, key: impl Into<String>) -> Self {
        self.after = Some(key.into());
        self
    }

    /// At most this many documents.
    pub fn limit(mut self, documents: u64) -> Self {
        self.limit = documents;
        self
    }

    /// The document with this key, if there is one.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Refused`] if it has no
    /// documents, or readers see no version of it yet; [`ProjectionError::Invalid`] if what is to be found
    /// is no path or value; [`ProjectionError::Document`] if the document does not fit `T`; [`ProjectionError::Store`] if the database refuses or cannot be reached.
    pub async fn get(self, key: impl Into<String>) -> Result<Option<T>, ProjectionError> {
        let found = self.page(Some(vec![key.into()]), None, 1).await?;
        Ok(found.into_iter().next().map(|found| found.document))
    }

    /// The documents with these keys, in key order; keys without one are left out.
    ///
    /// # Errors
    /// As [`ReadDocuments::get`].
    pub async fn get_many<K: Into<String>>(
        self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Document<T>>, ProjectionError> {
        let mut keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(PAGE) {
            found.extend(self.page(Some(keys.to_vec()), self.after.clone(), PAGE).await?);
        }
        found.truncate(usize::try_from(self.limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    /// The documents in key order, one by one, fetched page by page.
    pub fn stream(self) -> DocumentStream<T>
    where
        T: Send + 'static,
    {
        let pages = stream::try_unfold(Some(self), |read| async move {
            let Some(mut read) = read else { return Ok(None) };
            let max = usize::try_from(read.limit).unwrap_or(usize::MAX).min(PAGE);
            if max == 0 {
                return Ok(None);
            }
            let page = read.page(None, read.after.clone(), max).await?;
            read.limit -= page.len() as u64;
            read.after = page.last().map(|last| last.key.clone());
            let next = (page.len() == max).then_some(read);
            Ok::<_, ProjectionError>(Some((stream::iter(page.into_iter().map(Ok)), next)))
        });
        DocumentStream(pages.try_flatten().boxed())
    }

    /// All of them at once, in key order.
    ///
    /// # Errors
    /// As [`ReadDocuments::get`].
    pub async fn collect(self) -> Result<Vec<Document<T>>, ProjectionError>
    where
        T: Send + 'static,
    {
        self.stream().try_collect().await
    }

    async fn page(
        &self,
        keys: Option<Vec<String>>,
        after: Option<String>,
        max: usize,
    ) -> Result<Vec<Document<T>>, ProjectionError> {
        if let Some(message) = &self.wrong {
            return Err(ProjectionError::Invalid {
                projection: self.name.clone(),
                message: message.clone(),
            });
        }
        let query = DocumentQuery {
            namespace: self.store.options().namespace.clone(),
            name: self.name.clone(),
            keys,
            fields: self.fields.clone(),
            after,
            max,
        };
        match self.store.backend().documents(query).await {
            Ok(found) if found.is_empty() => {
                self.check_readable().await?;
                Ok(Vec::new())
            }
            Ok(found) => found.into_iter().map(|stored| self.read(stored)).collect(),
            Err(error) => {
                self.check_readable().await?;
                Err(error.into())
            }
        }
    }

    /// Nothing was found: is that because there is nothing to read from? What this handle has
    /// registered need not be asked for.
    async fn check_readable(&self) -> Result<(), ProjectionError> {
        if self.store.hub().gave_active(&self.name, ProjectionKind::Document) {
            return Ok(());
        }
        let generation = self.store.generation_of(&self.name).await?;
        let refused =
            |message| Err(ProjectionError::Refused { projection: self.name.clone(), message });
        if generation.kind != ProjectionKind::Document {
            return refused(format!("has no documents: it is of the kind {}", generation.kind));
        }
        match generation.is_active {
            true => Ok(()),
            false => {
                let reason = generation.reason.unwrap_or_default();
                refused(format!("cannot be read yet, it is {}: {reason}", generation.status))
            }
        }
    }

    fn read(&self, stored: StoredDocument) -> Result<Document<T>, ProjectionError> {
        let StoredDocument { key, document, position } = stored;
        match serde_json::from_str(&document) {
            Ok(document) => Ok(Document { key, document, position }),
            Err(source) => {
                let projection = self.name.clone();
                Err(ProjectionError::Document { projection, key, source })
            }
        }
    }
}

/// Documents as they are fetched, in key order. Dropping it ends the read.
#[must_use = "streams do nothing unless polled"]
pub struct DocumentStream<T>(BoxStream<'static, Result<Document<T>, ProjectionError>>);

impl<T> DocumentStream<T> {
    /// The next document, `None` at the end.
    ///
    /// # Errors
    /// As [`ReadDocuments::get`]; the stream ends with it.
    pub async fn next(&mut self) -> Result<Option<Document<T>>, ProjectionError> {
        StreamExt::next(&mut self.0).await.transpose()
    }
}

impl<T> Stream for DocumentStream<T> {
    type Item = Result<Document<T>, ProjectionError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl<T> std::fmt::Debug for DocumentStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DocumentStream").finish_non_exhaustive()
    }
}
