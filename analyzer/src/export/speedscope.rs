//! speedscope's own JSON: one profile by stack for each measure.

use super::collapsed::tree;
use super::tree::Identity;
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure, verify};
use crate::text::clean;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The exporter of speedscope files.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "speedscope"
    }

    fn extension(&self) -> &'static str {
        "speedscope.json"
    }

    fn summary(&self) -> &'static str {
        "speedscope's JSON, a profile for each measure"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let measures = measure::all(source, out);
        let tree = tree(source, &measures, Identity::Line);
        let mut file = out.stream()?;
        let frames: Vec<Value> = tree
            .frames
            .iter()
            .map(|frame| {
                let mut value = json!({ "name": clean(frame.function.as_deref().unwrap_or_default()) });
                let path = frame.file.as_deref().filter(|file| !file.is_empty()).unwrap_or(&frame.module);
                if !path.is_empty() {
                    value["file"] = clean(path).into();
                }
                if let Some(line) = frame.line {
                    value["line"] = line.into();
                }
                value
            })
            .collect();
        let text = |value: &Value| value.to_string().into_bytes();
        file.put(br#"{"$schema":"https://www.speedscope.app/file-format-schema.json","exporter":"heaptape","shared":{"frames":"#)?;
        file.put(&text(&frames.into()))?;
        file.put(br#"},"name":"#)?;
        file.put(&text(&measure::title(source).into()))?;
        file.put(br#","activeProfileIndex":0,"profiles":["#)?;
        for (column, what) in measures.iter().enumerate() {
            let between = if column > 0 { "," } else { "" };
            let unit = if what.is_bytes() { "bytes" } else { "none" };
            let total = tree.inclusive(column)[0];
            let name = format!("{}: {}", what.name(), what.help());
            let head = format!(
                r#"{between}{{"type":"sampled","name":{},"unit":"{unit}","startValue":0,"endValue":{total},"samples":["#,
                Value::from(name)
            );
            file.put(head.as_bytes())?;
            let mut failed = None;
            let stack = std::cell::RefCell::new(Vec::<String>::new());
            let mut weights: Vec<String> = Vec::new();
            tree.walk(
                |node| {
                    let mut stack = stack.borrow_mut();
                    stack.push(tree.nodes[node as usize].frame.to_string());
                    let amount = tree.columns[column][node as usize];
                    if amount > 0 && failed.is_none() {
                        let between = if weights.is_empty() { "" } else { "," };
                        failed = file.put(format!("{between}[{}]", stack.join(",")).as_bytes()).err();
                        weights.push(amount.to_string());
                    }
                    true
                },
                |_| drop(stack.borrow_mut().pop()),
            );
            failed.map_or(Ok(()), Err)?;
            file.put(format!("],\"weights\":[{}]}}", weights.join(",")).as_bytes())?;
        }
        file.put(b"]}\n")?;
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let measures = measure::known(source, Measure::ALL);
        measure::totals(source, &measures)
    }

    fn held(&self, _: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for path in files {
            let file = verify::read_json(path)?;
            for profile in file["profiles"].as_array().into_iter().flatten() {
                let weights = profile["weights"].as_array().into_iter().flatten();
                let sum = weights.filter_map(Value::as_u64).map(u128::from).sum();
                let name = profile["name"].as_str().unwrap_or_default();
                totals.add(name.split(':').next().unwrap_or_default(), sum);
            }
        }
        Ok(totals)
    }
}
