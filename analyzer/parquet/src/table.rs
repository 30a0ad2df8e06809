//! Writes a table: collects rows in columns, and writes them in row groups.

use anyhow::Context;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Number of rows of a group. It is large enough for good compression, and small enough for memory
/// at about 100 bytes per row.
pub(crate) const GROUP: usize = 1 << 18;

/// A value of a row.
pub(crate) enum Cell {
    /// A value of type `int32`.
    Small(i32),
    /// A value of type `int64`.
    Number(i64),
    /// A value of type `int64` that may be null.
    Maybe(Option<i64>),
    /// A value of type `string`.
    Text(ByteArray),
    /// A list of values of type `int64`.
    List(Vec<i64>),
}

/// Returns a number as a signed one.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a number as a small signed one.
pub(crate) fn small(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(crate) fn text(text: &str) -> Cell {
    Cell::Text(text.into())
}

/// The values of a column that have not been written yet.
enum Column {
    Small(Vec<i32>),
    Number(Vec<i64>),
    Maybe(Vec<Option<i64>>),
    Text(Vec<ByteArray>),
    List(Vec<Vec<i64>>),
}

/// A column of a schema: name and kind.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    /// Name of the column.
    pub name: &'static str,
    /// Type of the column: `i32`, `i64`, `i64?`, `text` or `[i64]`; `id` for values of type `i64`
    /// that hardly repeat, and that are stored as differences.
    pub kind: &'static str,
}

/// Makes a list of [`Field`]s.
macro_rules! fields {
    ($($name:ident: $kind:literal),* $(,)?) => { &[$($crate::table::Field { name: stringify!($name), kind: $kind }),*] };
}
pub(crate) use fields;

/// A table that is being written to a file.
pub(crate) struct Table {
    writer: SerializedFileWriter<File>,
    columns: Vec<Column>,
    rows: usize,
    /// The column that each group is sorted by.
    order: Option<usize>,
}

impl Table {
    /// Creates a file. `order` is the column by which the rows of each group are sorted.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub(crate) fn create(path: &Path, fields: &[Field], order: Option<&str>) -> anyhow::Result<Table> {
        let lines = fields.iter().map(|Field { name, kind }| match *kind {
            "i32" => format!("required int32 {name};"),
            "i64" | "id" => format!("required int64 {name};"),
            "i64?" => format!("optional int64 {name};"),
            "text" => format!("required binary {name} (STRING);"),
            _ => format!("required group {name} (LIST) {{ repeated group list {{ required int64 element; }} }}"),
        });
        let message = format!("message row {{ {} }}", lines.collect::<Vec<_>>().join(" "));
        let schema = Arc::new(parse_message_type(&message).context("the table's schema")?);
        let order = order.and_then(|name| fields.iter().position(|field| field.name == name));
        let sorted = order.map(|column| {
            vec![SortingColumn {
                column_idx: i32::try_from(column).unwrap_or(0),
                descending: false,
                nulls_first: false,
            }]
        });
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_created_by(format!("heaptape {}", env!("CARGO_PKG_VERSION")))
            .set_sorting_columns(sorted);
        for field in fields.iter().filter(|field| field.kind == "id") {
            let column = ColumnPath::from(field.name);
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let columns = fields.iter().map(|field| match field.kind {
            "i32" => Column::Small(Vec::new()),
            "i64" | "id" => Column::Number(Vec::new()),
            "i64?" => Column::Maybe(Vec::new()),
            "text" => Column::Text(Vec::new()),
            _ => Column::List(Vec::new()),
        });
        let columns = columns.collect();
        Ok(Table {
            writer: SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?,
            columns,
            rows: 0,
            order,
        })
    }

    /// Adds a row with a cell for each column.
    ///
    /// # Errors
    /// Returns an error if a cell has another type than its column, or if writing fails.
    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) -> anyhow::Result<()> {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            match (column, cell) {
                (Column::Small(values), Cell::Small(value)) => values.push(value),
                (Column::Number(values), Cell::Number(value)) => values.push(value),
                (Column::Maybe(values), Cell::Maybe(value)) => values.push(value),
                (Column::Text(values), Cell::Text(value)) => values.push(value),
                (Column::List(values), Cell::List(value)) => values.push(value),
                _ => anyhow::bail!("a cell of another kind than its column"),
            }
        }
        self.rows += 1;
        if self.rows == GROUP { self.write_group() } else { Ok(()) }
    }

    /// Writes the rows collected so far as a group.
    fn write_group(&mut self) -> anyhow::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        if let Some(Column::Number(keys)) = self.order.and_then(|order| self.columns.get(order))
            && !keys.is_sorted()
        {
            let mut indexes: Vec<usize> = (0..self.rows).collect();
            indexes.sort_by_key(|&index| keys[index]);
            self.columns.iter_mut().for_each(|column| column.reorder(&indexes));
        }
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let Some(mut writer) = group.next_column()? else { break };
            match column {
                Column::Small(values) => drop(writer.typed::<Int32Type>().write_batch(values, None, None)?),
                Column::Number(values) => drop(writer.typed::<Int64Type>().write_batch(values, None, None)?),
                Column::Text(values) => drop(writer.typed::<ByteArrayType>().write_batch(values, None, None)?),
                Column::Maybe(values) => {
                    let there: Vec<i64> = values.iter().flatten().copied().collect();
                    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
                    writer.typed::<Int64Type>().write_batch(&there, Some(&levels), None)?;
                }
                Column::List(values) => {
                    let there: Vec<i64> = values.iter().flatten().copied().collect();
                    // An empty list is one null item. Each further item of a list has repetition
                    // level 1.
                    let (mut definitions, mut repeats) = (Vec::new(), Vec::new());
                    for list in values.iter() {
                        definitions.extend((0..list.len().max(1)).map(|_| i16::from(!list.is_empty())));
                        repeats.extend((0..list.len().max(1)).map(|at| i16::from(at > 0)));
                    }
                    writer.typed::<Int64Type>().write_batch(&there, Some(&definitions), Some(&repeats))?;
                }
            }
            writer.close()?;
            column.clear();
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    /// Writes the remaining rows and the end of the file.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.write_group()?;
        self.writer.close()?;
        Ok(())
    }
}

impl Column {
    fn clear(&mut self) {
        match self {
            Column::Small(values) => values.clear(),
            Column::Number(values) => values.clear(),
            Column::Maybe(values) => values.clear(),
            Column::Text(values) => values.clear(),
            Column::List(values) => values.clear(),
        }
    }

    fn reorder(&mut self, indexes: &[usize]) {
        match self {
            Column::Small(values) => *values = indexes.iter().map(|&index| values[index]).collect(),
            Column::Number(values) => *values = indexes.iter().map(|&index| values[index]).collect(),
            Column::Maybe(values) => *values = indexes.iter().map(|&index| values[index]).collect(),
            Column::Text(values) => *values = indexes.iter().map(|&index| values[index].clone()).collect(),
            Column::List(values) => {
                *values = indexes.iter().map(|&index| std::mem::take(&mut values[index])).collect();
            }
        }
    }
}
