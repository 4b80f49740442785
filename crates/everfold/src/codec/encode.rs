//! Writing: a serializer that takes an enum variant apart into its name and its content's JSON.

use std::fmt::Display;

use serde::ser::{
    self, Impossible, Serialize, SerializeStructVariant, SerializeTupleVariant, Serializer,
};

use super::EncodeError;

/// The variant's name and its content as JSON text.
pub(crate) fn encode<E: Serialize + ?Sized>(
    event: &E,
) -> Result<(&'static str, String), EncodeError> {
    event.serialize(VariantSerializer)
}

impl ser::Error for EncodeError {
    fn custom<T: Display>(message: T) -> Self {
        EncodeError::new(message)
    }
}

struct VariantSerializer;

type Encoded = (&'static str, String);

fn not_an_enum<T>() -> Result<T, EncodeError> {
    Err(EncodeError::new(
        "an event must be a variant of an externally tagged enum (serde's default); \
         use `NewEvent::new` for other types",
    ))
}

/// Content that serde hands over piece by piece, written as one JSON object or array.
struct Pieces {
    variant: &'static str,
    json: Vec<u8>,
}

impl Pieces {
    fn open(variant: &'static str, bracket: u8) -> Self {
        Pieces { variant, json: vec![bracket] }
    }

    fn separate(&mut self) {
        if self.json.len() > 1 {
            self.json.push(b',');
        }
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        serde_json::to_writer(&mut self.json, value).map_err(EncodeError::json)
    }

    fn close(mut self, bracket: u8) -> Result<Encoded, EncodeError> {
        self.json.push(bracket);
        Ok((self.variant, String::from_utf8(self.json).map_err(EncodeError::new)?))
    }
}

impl SerializeTupleVariant for Pieces {
    type Ok = Encoded;
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.separate();
        self.push(value)
    }

    fn end(self) -> Result<Encoded, EncodeError> {
        self.close(b']')
    }
}

impl SerializeStructVariant for Pieces {
    type Ok = Encoded;
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.separate();
        self.push(name)?;
        self.json.push(b':');
        self.push(value)
    }

    fn end(self) -> Result<Encoded, EncodeError> {
        self.close(b'}')
    }
}

macro_rules! refuse {
    ($($method:ident($($argument:ty),*))*) => {$(
        fn $method(self $(, _: $argument)*) -> Result<Encoded, EncodeError> {
            not_an_enum()
        }
    )*};
}

impl Serializer for VariantSerializer {
    type Ok = Encoded;
    type Error = EncodeError;
    type SerializeSeq = Impossible<Encoded, EncodeError>;
    type SerializeTuple = Impossible<Encoded, EncodeError>;
    type SerializeTupleStruct = Impossible<Encoded, EncodeError>;
    type SerializeTupleVariant = Pieces;
    type SerializeMap = Impossible<Encoded, EncodeError>;
    type SerializeStruct = Impossible<Encoded, EncodeError>;
    type SerializeStructVariant = Pieces;

    refuse! {
        serialize_bool(bool) serialize_i8(i8) serialize_i16(i16) serialize_i32(i32)
        serialize_i64(i64) serialize_u8(u8) serialize_u16(u16) serialize_u32(u32)
        serialize_u64(u64) serialize_f32(f32) serialize_f64(f64) serialize_char(char)
        serialize_str(&str) serialize_bytes(&[u8]) serialize_none() serialize_unit()
        serialize_unit_struct(&'static str)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<Encoded, EncodeError> {
        not_an_enum()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Encoded, EncodeError> {
        value.serialize(self)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Encoded, EncodeError> {
        Ok((variant, "null".to_owned()))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Encoded, EncodeError> {
        Ok((variant, serde_json::to_string(value).map_err(EncodeError::json)?))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Pieces, EncodeError> {
        Ok(Pieces::open(variant, b'['))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Pieces, EncodeError> {
        Ok(Pieces::open(variant, b'{'))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, EncodeError> {
        not_an_enum()
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, EncodeError> {
        not_an_enum()
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, EncodeError> {
        not_an_enum()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, EncodeError> {
        not_an_enum()
    }

    fn serialize_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStruct, EncodeError> {
        not_an_enum()
    }
}
