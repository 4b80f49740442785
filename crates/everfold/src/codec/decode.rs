//! Reading: a deserializer that offers (type, data) to serde as a variant and its content.

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer,
    VariantAccess, Visitor,
};
use serde_json::Error;

/// The event as a variant of `E`; `None` if `E` has no variant of that name.
pub(crate) fn decode<E: DeserializeOwned>(
    event_type: &str,
    data: &str,
) -> Result<Option<E>, Error> {
    let mut unknown = false;
    match E::deserialize(Variant { event_type, data, unknown: &mut unknown }) {
        Err(_) if unknown => Ok(None),
        other => other.map(Some),
    }
}

/// The names of the variants of `E`, which are the event types it can decode; empty if `E` is not
/// an enum. With `#[serde(alias)]` the aliases are among them.
///
/// ```
/// # use serde::Deserialize;
/// #[derive(Deserialize)]
/// enum CartEvent {
///     ItemAdded { sku: String },
///     CheckedOut,
/// }
/// assert_eq!(everfold::event_types::<CartEvent>(), ["ItemAdded", "CheckedOut"]);
/// ```
#[must_use]
pub fn event_types<E: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Always an error: the visit only looks at what serde asks for.
    let _ = E::deserialize(Names(&mut names));
    names
}

struct Variant<'a> {
    event_type: &'a str,
    data: &'a str,
    /// Set when the name itself is refused, which must not be taken for bad data.
    unknown: &'a mut bool,
}

impl<'de, 'a: 'de> Deserializer<'de> for Variant<'a> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_enum(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

impl<'de, 'a: 'de> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = Content<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Content<'a>), Error> {
        let name: de::value::StrDeserializer<'_, Error> = self.event_type.into_deserializer();
        match seed.deserialize(name) {
            Ok(variant) => Ok((variant, Content(self.data))),
            Err(error) => {
                *self.unknown = true;
                Err(error)
            }
        }
    }
}

struct Content<'a>(&'a str);

impl<'a> Content<'a> {
    /// Runs one deserialisation over the data and sees to it that nothing stands behind it.
    fn read<T>(
        &self,
        read: impl FnOnce(
            &mut serde_json::Deserializer<serde_json::de::StrRead<'a>>,
        ) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut json = serde_json::Deserializer::from_str(self.0);
        let value = read(&mut json)?;
        json.end()?;
        Ok(value)
    }
}

impl<'de, 'a: 'de> VariantAccess<'de> for Content<'a> {
    type Error = Error;

    /// Whatever the data holds: a type whose fields were all dropped stays readable.
    fn unit_variant(self) -> Result<(), Error> {
        self.read(|json| de::Deserialize::deserialize(json).map(|_: de::IgnoredAny| ()))
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        self.read(|json| seed.deserialize(json))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.read(|json| json.deserialize_tuple(len, visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.read(|json| json.deserialize_struct("", fields, visitor))
    }
}

struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("only the names of the variants are wanted"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = variants;
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
