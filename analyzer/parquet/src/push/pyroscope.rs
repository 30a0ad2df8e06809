//! Requests to Pyroscope: `POST /ingest` with a pprof profile in a form, as its own clients send
//! it. Source: <https://grafana.com/docs/pyroscope/latest/reference-server-api/>.

use super::format::{Profile, VALUE_TYPES};
use super::queue::Request;
use flate2::{Compression, write::GzEncoder};
use heaptape_formats::pprof::{Function, Line, Location, Mapping, Record, Sample, ValueType, Writer, record};
use std::collections::HashMap;
use std::io::Write;

/// Size of the addresses of an object file in the profile. Offsets beyond it are kept as they are.
const MAPPING_BYTES: u64 = 1 << 40;
/// Boundary of the form. It is at no place in a compressed profile but by a chance of 2^-250.
const BOUNDARY: &str = "heaptape-8f14e45fceea167a5a36dedd4bea2543-profile";

/// Returns the request that sends a profile.
pub(super) fn request(profile: &Profile) -> Request {
    let mut body = Vec::new();
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"profile\"; filename=\"profile.pprof\"\r\nContent-Type: application/octet-stream\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(&compressed(&pprof(profile)));
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    Request {
        path: format!(
            "/ingest?name={}&from={}&until={}&spyName=heaptape",
            encoded(&name(profile)),
            // Pyroscope takes seconds, milliseconds, microseconds or nanoseconds, by the size.
            profile.from_ns,
            profile.until_ns
        ),
        content_type: format!("multipart/form-data; boundary={BOUNDARY}"),
        body,
    }
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::new(4));
    // Writing to a vector cannot fail.
    let _ = out.write_all(bytes);
    out.finish().unwrap_or_default()
}

/// Returns the name of the application with its labels, such as `redis-server{host=web1}`.
fn name(profile: &Profile) -> String {
    let labels = [("host", &profile.host), ("label", &profile.label)];
    let labels: Vec<String> = labels
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key}={}", plain(value)))
        .collect();
    format!("{}{{{}}}", plain(&profile.program), labels.join(","))
}

/// Returns a name without the characters that separate labels.
fn plain(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._-/@:".contains(c);
    text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// Returns a value of a query.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Returns the profile as pprof, not compressed.
fn pprof(profile: &Profile) -> Vec<u8> {
    let (mut out, mut tables) = (Vec::new(), Vec::new());
    let mut texts = Writer::new(&mut tables);
    for (kind, unit) in VALUE_TYPES {
        let (kind, unit) = (texts.text(&mut tables, kind.as_bytes()), texts.text(&mut tables, unit.as_bytes()));
        record(&mut out, &Record::SampleType(ValueType { kind, unit }));
    }
    let (kind, unit) = (texts.text(&mut tables, b"space"), texts.text(&mut tables, b"bytes"));
    record(&mut out, &Record::PeriodType(ValueType { kind, unit }));
    record(&mut out, &Record::Period(1));
    record(&mut out, &Record::TimeNanos(profile.from_ns as i64));
    record(&mut out, &Record::DurationNanos(profile.until_ns.saturating_sub(profile.from_ns) as i64));
    let mut functions: HashMap<(i64, i64), u64> = HashMap::new();
    for (number, object) in (0_u64..).zip(&profile.objects) {
        let file = texts.text(&mut tables, object.path.as_bytes());
        let build_id = texts.text(&mut tables, object.build_id.as_bytes());
        // Each object has addresses of its own.
        let start = number * MAPPING_BYTES;
        let mapping = Mapping {
            id: number + 1,
            start,
            limit: start + MAPPING_BYTES,
            offset: 0,
            file,
            build_id,
            has_functions: true,
            has_files: true,
            has_lines: true,
            has_inlined: true,
        };
        record(&mut out, &Record::Mapping(mapping));
    }
    for (number, location) in (1_u64..).zip(&profile.locations) {
        let mut line = Vec::new();
        for one in &location.lines {
            let name = texts.text(&mut tables, one.function.as_bytes());
            let file = texts.text(&mut tables, one.file.as_bytes());
            let next = functions.len() as u64 + 1;
            let function = *functions.entry((name, file)).or_insert_with(|| {
                record(
                    &mut out,
                    &Record::Function(Function { id: next, name, system_name: name, file, start_line: 0 }),
                );
                next
            });
            line.push(Line { function, line: one.line });
        }
        let object = location.object.map_or(0, |object| object as u64);
        let address = location.address.wrapping_add(object * MAPPING_BYTES);
        let mapping = location.object.map_or(0, |object| object as u64 + 1);
        record(&mut out, &Record::Location(Location { id: number, mapping, address, line, is_folded: false }));
    }
    for sample in profile.samples.values() {
        let location = sample.locations.iter().map(|&index| index as u64 + 1).collect();
        record(&mut out, &Record::Sample(Sample { location, value: sample.values.to_vec(), label: Vec::new() }));
    }
    out.append(&mut tables);
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::format;
    use super::*;
    use heaptape_formats::pprof::Reader;

    pub(crate) fn example() -> Profile {
        let line = format::Line { function: "keep_session".into(), file: "server.c".into(), line: 11 };
        Profile {
            program: "shop server".into(),
            label: "shop.service".into(),
            host: "web1".into(),
            from_ns: 1_700_000_000_000_000_000,
            until_ns: 1_700_000_060_000_000_000,
            objects: vec![format::Object { path: "/usr/bin/shop".into(), build_id: "ab12".into() }],
            locations: vec![
                format::Location { object: Some(0), address: 0x1234, lines: vec![line.clone(), line] },
                format::Location { object: None, address: 7, lines: Vec::new() },
            ],
            samples: [(5, format::Sample { locations: vec![0, 1], values: [3, 300, 2, 200] })].into(),
            ..Profile::default()
        }
    }

    #[test]
    fn profile_is_read_again() {
        let bytes = pprof(&example());
        let (mut reader, mut texts, mut samples, mut functions) = (Reader::new(&bytes), Vec::new(), Vec::new(), 0);
        while let Some(found) = reader.next().unwrap() {
            match found {
                Record::Text(text) => texts.push(String::from_utf8(text).unwrap()),
                Record::Sample(sample) => samples.push((sample.location, sample.value)),
                Record::Function(_) => functions += 1,
                _ => {}
            }
        }
        assert_eq!((samples, functions), (vec![(vec![1, 2], vec![3, 300, 2, 200])], 1));
        assert!(
            ["", "keep_session", "server.c", "inuse_space", "ab12"].iter().all(|text| texts.contains(&(*text).into()))
        );
    }

    #[test]
    fn names_have_no_separators() {
        let request = request(&example());
        assert_eq!(
            request.path,
            "/ingest?name=shop_server%7Bhost%3Dweb1%2Clabel%3Dshop.service%7D&from=1700000000000000000&until=1700000060000000000&spyName=heaptape"
        );
        assert!(request.body.starts_with(b"--heaptape-") && request.body.ends_with(b"--\r\n"));
        let hostile = Profile { program: "a{b=c},\"&x".into(), ..Profile::default() };
        assert_eq!(name(&hostile), "a_b_c____x{}");
    }
}
