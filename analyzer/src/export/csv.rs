//! A table for spreadsheets and data frames: a row for each stack with its sums, or for each event.

use super::rows::{self, EventRow, StackRow};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure};
use crate::unpack;
use std::borrow::Cow;
use std::path::PathBuf;

/// The exporter of CSV tables.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn extension(&self) -> &'static str {
        "csv"
    }

    fn summary(&self) -> &'static str {
        "comma-separated values: a row a stack, or with --events a row an event"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let each_event = source.options.each_event;
        let measures = if each_event { Vec::new() } else { measure::all(source, out) };
        let mut file = out.stream()?;
        if each_event {
            file.put(b"process,pid,time_ns,number,kind,function,thread,index,address,size,stack\n")?;
            return rows::each_event(source, &mut |row: &EventRow<'_>| {
                let EventRow { process, pid, event, kind, function, time_ns, .. } = row;
                let line = format!(
                    "{},{pid},{time_ns},{},{kind},{},{},{},{:#x},{},{}\n",
                    cell(process),
                    event.number,
                    cell(function),
                    event.thread,
                    event.index,
                    event.address,
                    event.size,
                    cell(row.stack)
                );
                file.put(line.as_bytes())
            })
            .and_then(|()| file.finish());
        }
        let names: Vec<String> = measures.iter().map(|what| what.name().replace('-', "_")).collect();
        file.put(format!("process,pid,site,{},function,file,line,module,stack\n", names.join(",")).as_bytes())?;
        rows::each_stack(source, &measures, &mut |row: &StackRow<'_>| {
            let values: Vec<String> = row.values.iter().map(u64::to_string).collect();
            let line = format!(
                "{},{},{},{},{},{},{},{},{}\n",
                cell(row.process),
                row.pid,
                row.site,
                values.join(","),
                cell(&row.frame.function),
                cell(row.frame.file.as_deref().unwrap_or_default()),
                row.frame.line.map(|line| line.to_string()).unwrap_or_default(),
                cell(row.frame.module.as_deref().unwrap_or_default()),
                cell(row.stack)
            );
            file.put(line.as_bytes())
        })?;
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        rows::totals(source)
    }

    fn held(&self, _: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for path in files {
            let opened = unpack::open(path)?;
            let text = String::from_utf8_lossy(&opened.bytes);
            let mut lines = text.lines();
            let names: Vec<String> = split(lines.next().unwrap_or_default());
            let at = |name: &str| names.iter().position(|found| found == name);
            for line in lines {
                let cells = split(line);
                if let (Some(kind), Some(size)) = (at("kind"), at("size")) {
                    let size = cells.get(size).and_then(|size| size.parse().ok()).unwrap_or(0);
                    rows::count(&mut totals, cells.get(kind).map_or("", String::as_str), size);
                }
                for what in Measure::ALL {
                    let value = at(&what.name().replace('-', "_")).and_then(|at| cells.get(at)?.parse().ok());
                    if let Some(value) = value {
                        totals.add(what.name(), value);
                    }
                }
            }
        }
        Ok(totals)
    }
}

/// Returns a cell, in quotes where necessary. Control characters, including line feeds, are
/// replaced.
fn cell(text: &str) -> Cow<'_, str> {
    let clean = crate::text::clean(text);
    // Text that a spreadsheet would read as a formula is prefixed with a quote, so that it is
    // shown as text.
    let risky = clean.starts_with(['=', '+', '-', '@']);
    if !risky && !clean.contains([',', '"', ' ']) {
        return clean;
    }
    let quote = if risky { "'" } else { "" };
    format!("\"{quote}{}\"", clean.replace('"', "\"\"")).into()
}

/// Returns the cells of a line.
fn split(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(c) = letters.next() {
        match c {
            '"' if quoted && letters.peek() == Some(&'"') => {
                cell.push('"');
                letters.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            c => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_round_trip() {
        let texts = ["a", "a,b", "say \"x\"", "", "two words", "std::map<int, int>"];
        let line = texts.map(|text| cell(text).into_owned()).join(",");
        assert_eq!(split(&line), texts);
        assert_eq!(cell("=HYPERLINK(1)"), "\"'=HYPERLINK(1)\"");
        assert_eq!(cell("a\nb"), "a\u{fffd}b");
    }
}
