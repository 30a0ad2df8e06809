//! Writer of profiles, one record at a time.

use super::layout::Record;
use crate::leb128;
use prost::Message;
use std::collections::HashMap;

/// Appends a record to `out`.
pub fn record(out: &mut Vec<u8>, record: &Record) {
    match record {
        Record::SampleType(value) => message(out, 1, value),
        Record::Sample(value) => message(out, 2, value),
        Record::Mapping(value) => message(out, 3, value),
        Record::Location(value) => message(out, 4, value),
        Record::Function(value) => message(out, 5, value),
        Record::Text(text) => {
            leb128::write(out, 6 << 3 | 2);
            leb128::write(out, text.len() as u64);
            out.extend_from_slice(text);
        }
        Record::TimeNanos(value) => number(out, 9, *value),
        Record::DurationNanos(value) => number(out, 10, *value),
        Record::PeriodType(value) => message(out, 11, value),
        Record::Period(value) => number(out, 12, *value),
        Record::Comment(value) => number(out, 13, *value),
        Record::DefaultSampleType(value) => number(out, 14, *value),
        Record::Other(_) => {}
    }
}

fn message(out: &mut Vec<u8>, field: u64, message: &impl Message) {
    leb128::write(out, field << 3 | 2);
    leb128::write(out, message.encoded_len() as u64);
    // Writing to a vector cannot fail.
    let _ = message.encode(out);
}

fn number(out: &mut Vec<u8>, field: u64, value: i64) {
    leb128::write(out, field << 3);
    leb128::write(out, value.cast_unsigned());
}

/// Table of texts: assigns their indexes and writes those that are new.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    texts: HashMap<Vec<u8>, i64>,
}

impl Writer {
    /// Creates the table and writes the empty text, which has index 0.
    pub fn new(out: &mut Vec<u8>) -> Writer {
        let mut writer = Writer::default();
        writer.text(out, b"");
        writer
    }

    /// Returns the index of a text. Writes the text if it is new.
    pub fn text(&mut self, out: &mut Vec<u8>, text: &[u8]) -> i64 {
        if let Some(&index) = self.texts.get(text) {
            return index;
        }
        let index = self.texts.len() as i64;
        self.texts.insert(text.to_vec(), index);
        record(out, &Record::Text(text.to_vec()));
        index
    }
}
