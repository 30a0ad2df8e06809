//! Encoding of the fields of tape records. Numbers are LEB128, texts are raw bytes after their
//! length.

use crate::{Cursor, Result, leb128};

/// A value of a record.
pub trait Field: Sized {
    /// Minimum length of a value in bytes; bounds the count that a list may announce.
    const MIN_LEN: usize = 1;
    /// Appends the encoded value to `out`.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value; `name` is the field in errors.
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self>;
}

impl Field for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        leb128::write(out, *self);
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        cursor.leb(name)
    }
}

macro_rules! unsigned {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                leb128::write(out, u64::from(*self));
            }
            fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
                let start = cursor.clone();
                let value = cursor.leb(name)?;
                <$kind>::try_from(value).map_err(|_| start.bad(name, value, concat!("a ", stringify!($kind), " belongs")))
            }
        }
    )*};
}
unsigned!(u8, u16, u32);

impl Field for i64 {
    fn put(&self, out: &mut Vec<u8>) {
        leb128::write(out, leb128::zigzag(*self));
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        cursor.leb(name).map(leb128::unzigzag)
    }
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        cursor.byte(name).map(|byte| byte != 0)
    }
}

/// Raw bytes: paths, names, build IDs, compressed columns. This is a type of its own, since
/// `Vec<u8>` would be a list of numbers.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Text(pub Vec<u8>);

impl Text {
    /// Returns the text for display. Bytes that are not UTF-8 are replaced.
    pub fn lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.lossy())
    }
}

impl<T: AsRef<[u8]>> From<T> for Text {
    fn from(bytes: T) -> Self {
        Text(bytes.as_ref().to_vec())
    }
}

impl Field for Text {
    fn put(&self, out: &mut Vec<u8>) {
        leb128::write(out, self.0.len() as u64);
        out.extend_from_slice(&self.0);
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        cursor.bytes(name).map(|bytes| Text(bytes.to_vec()))
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        leb128::write(out, self.len() as u64);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        let count = cursor.count(name, T::MIN_LEN)?;
        (0..count).map(|_| T::get(cursor, name)).collect()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        Ok(if bool::get(cursor, name)? { Some(T::get(cursor, name)?) } else { None })
    }
}

impl<T: Field> Field for Box<T> {
    const MIN_LEN: usize = T::MIN_LEN;
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        T::get(cursor, name).map(Box::new)
    }
}

/// A field that was added at the end of a record. Records that were written before do not have it,
/// and it has its default value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added<T>(pub T);

impl<T: Field + Default> Field for Added<T> {
    const MIN_LEN: usize = 0;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(cursor: &mut Cursor<'_>, name: &'static str) -> Result<Self> {
        if cursor.remaining() == 0 { Ok(Added::default()) } else { T::get(cursor, name).map(Added) }
    }
}

/// Declares a record: one list of fields makes the struct, its writer and its reader.
#[macro_export]
#[doc(hidden)]
macro_rules! tape_record {
    ($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $kind),* }

        impl $crate::tape::field::Field for $name {
            const MIN_LEN: usize = 0 $(+ <$kind as $crate::tape::field::Field>::MIN_LEN)*;
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::tape::field::Field::put(&self.$field, out);)*
            }
            fn get(cursor: &mut $crate::Cursor<'_>, _name: &'static str) -> $crate::Result<Self> {
                Ok($name { $($field: $crate::tape::field::Field::get(cursor, concat!(stringify!($name), ".", stringify!($field)))?),* })
            }
        }
    };
}
