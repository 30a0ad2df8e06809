//! Requests of OTLP: `POST /v1development/profiles` with a message of protocol buffers. Source:
//! `opentelemetry/proto/profiles/v1development/profiles.proto` of
//! <https://github.com/open-telemetry/opentelemetry-proto>, version 1.9 and later: tables of stacks
//! and units of attributes are in the dictionary.

use super::format::{Profile, VALUE_TYPES};
use super::queue::Request;
use crate::ids::Hash;
use prost::Message;
use std::collections::HashMap;

/// The request, with the profiles of one or more resources.
#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<Dictionary>,
}

/// The profiles of a resource: of a program on a host.
#[derive(Clone, PartialEq, Message)]
struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_profiles: Vec<ScopeProfiles>,
}

/// The program that is profiled.
#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

/// An attribute of a resource.
#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// The value of an attribute; only texts are used.
#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
}

/// The profiles of one profiler.
#[derive(Clone, PartialEq, Message)]
struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<OneProfile>,
}

/// The profiler that made the profiles.
#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

/// A profile with one value for each sample.
#[derive(Clone, PartialEq, Message)]
struct OneProfile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    duration_nano: u64,
    #[prost(bytes = "vec", tag = "7")]
    profile_id: Vec<u8>,
}

/// Name and unit of a value, as indexes of texts.
#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(int32, tag = "2")]
    unit: i32,
}

/// A stack with its value.
#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int32, tag = "1")]
    stack: i32,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
}

/// The tables to which all messages refer by index. Index 0 of each is an empty entry.
#[derive(Clone, PartialEq, Message)]
struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    mappings: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    locations: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    functions: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    links: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    texts: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    stacks: Vec<Stack>,
}

/// An object file with code.
#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(int32, tag = "4")]
    file: i32,
    #[prost(int32, repeated, tag = "5")]
    attributes: Vec<i32>,
}

/// A link to a trace, of which there is only the empty entry.
#[derive(Clone, PartialEq, Message)]
struct Link {}

/// An attribute of a mapping, with its key as an index of texts.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(int32, tag = "1")]
    key: i32,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// A call stack, innermost location first.
#[derive(Clone, PartialEq, Message)]
struct Stack {
    #[prost(int32, repeated, tag = "1")]
    locations: Vec<i32>,
}

/// An instruction of an object file.
#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(int32, tag = "1")]
    mapping: i32,
    #[prost(uint64, tag = "2")]
    address: u64,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
}

/// A function with a line.
#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(int32, tag = "1")]
    function: i32,
    #[prost(int64, tag = "2")]
    line: i64,
}

/// A function, with indexes of texts.
#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(int32, tag = "1")]
    name: i32,
    #[prost(int32, tag = "2")]
    system_name: i32,
    #[prost(int32, tag = "3")]
    file: i32,
}

/// The table of texts.
struct Texts {
    list: Vec<String>,
    known: HashMap<String, i32>,
}

impl Texts {
    fn new() -> Texts {
        Texts { list: vec![String::new()], known: HashMap::from([(String::new(), 0)]) }
    }

    fn text(&mut self, text: &str) -> i32 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let index = index(self.list.len());
        self.list.push(text.to_owned());
        self.known.insert(text.to_owned(), index);
        index
    }
}

/// Converts an index. A profile has fewer entries than this type has numbers.
fn index(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn text_value(text: &str) -> Option<AnyValue> {
    Some(AnyValue { text: Some(text.to_owned()) })
}

/// Returns the request that sends a profile.
pub(super) fn request(profile: &Profile) -> Request {
    let message = message(profile);
    Request {
        path: "/v1development/profiles".into(),
        content_type: "application/x-protobuf".into(),
        body: message.encode_to_vec(),
    }
}

fn message(profile: &Profile) -> ExportRequest {
    let (dictionary, mut texts) = dictionary(profile);
    let profiles = (0..VALUE_TYPES.len()).map(|number| one_profile(profile, number, &mut texts)).collect();
    // Semantic conventions of OpenTelemetry name these attributes.
    let service = if profile.label.is_empty() { &profile.program } else { &profile.label };
    let attributes =
        [("service.name", service), ("process.executable.name", &profile.program), ("host.name", &profile.host)];
    let attributes = attributes.into_iter().filter(|(_, value)| !value.is_empty());
    let attributes = attributes.map(|(key, value)| KeyValue { key: key.into(), value: text_value(value) }).collect();
    let scope = Scope { name: "heaptape".into(), version: env!("CARGO_PKG_VERSION").into() };
    ExportRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource { attributes }),
            scope_profiles: vec![ScopeProfiles { scope: Some(scope), profiles }],
        }],
        dictionary: Some(Dictionary { texts: texts.list, ..dictionary }),
    }
}

fn one_profile(profile: &Profile, number: usize, texts: &mut Texts) -> OneProfile {
    let (kind, unit) = VALUE_TYPES[number];
    let samples = (1_usize..).zip(profile.samples.values());
    let samples = samples
        .filter(|(_, sample)| sample.values[number] != 0)
        .map(|(stack, sample)| Sample { stack: index(stack), values: vec![sample.values[number]] })
        .collect();
    let id = |part: u8| {
        let hash = Hash::new().bytes(profile.program.as_bytes()).bytes(&[0]).bytes(profile.label.as_bytes());
        let hash = hash.bytes(&[0]).bytes(profile.host.as_bytes()).bytes(&[0, part, number as u8]);
        hash.bytes(&profile.from_ns.to_le_bytes()).finish().to_be_bytes()
    };
    OneProfile {
        sample_type: Some(ValueType { kind: texts.text(kind), unit: texts.text(unit) }),
        samples,
        time_unix_nano: profile.from_ns,
        duration_nano: profile.until_ns.saturating_sub(profile.from_ns),
        // The same profile has the same number when it is sent again.
        profile_id: [id(0), id(1)].concat(),
    }
}

/// Returns the tables of a profile, without the texts.
fn dictionary(profile: &Profile) -> (Dictionary, Texts) {
    let mut texts = Texts::new();
    let mut tables = Dictionary {
        mappings: vec![Mapping::default()],
        locations: vec![Location::default()],
        functions: vec![Function::default()],
        links: vec![Link::default()],
        texts: Vec::new(),
        attributes: vec![Attribute::default()],
        stacks: vec![Stack::default()],
    };
    for object in &profile.objects {
        let mut attributes = Vec::new();
        if !object.build_id.is_empty() {
            attributes.push(index(tables.attributes.len()));
            let key = texts.text("process.executable.build_id.gnu");
            tables.attributes.push(Attribute { key, value: text_value(&object.build_id) });
        }
        tables.mappings.push(Mapping { file: texts.text(&object.path), attributes });
    }
    let mut functions: HashMap<(i32, i32), i32> = HashMap::new();
    for location in &profile.locations {
        let mut lines = Vec::new();
        for line in &location.lines {
            let (name, file) = (texts.text(&line.function), texts.text(&line.file));
            let function = *functions.entry((name, file)).or_insert_with(|| {
                tables.functions.push(Function { name, system_name: name, file });
                index(tables.functions.len() - 1)
            });
            lines.push(Line { function, line: line.line });
        }
        let mapping = location.object.map_or(0, |object| index(object + 1));
        tables.locations.push(Location { mapping, address: location.address, lines });
    }
    for sample in profile.samples.values() {
        let locations = sample.locations.iter().map(|location| index(location + 1)).collect();
        tables.stacks.push(Stack { locations });
    }
    (tables, texts)
}

#[cfg(test)]
mod tests {
    use super::super::pyroscope::tests::example;
    use super::*;

    #[test]
    fn message_refers_to_its_tables() {
        let sent = request(&example());
        let message = ExportRequest::decode(&sent.body[..]).unwrap();
        let tables = message.dictionary.unwrap();
        assert_eq!((tables.mappings.len(), tables.locations.len(), tables.functions.len()), (2, 3, 2));
        assert_eq!((tables.links.len(), tables.attributes.len(), &*tables.texts[0]), (1, 2, ""));
        assert_eq!(tables.stacks[1].locations, [1, 2]);
        let function = &tables.functions[tables.locations[1].lines[0].function as usize];
        assert_eq!(tables.texts[function.name as usize], "keep_session");
        let profiles = &message.resource_profiles[0].scope_profiles[0].profiles;
        let values: Vec<i64> = profiles.iter().map(|profile| profile.samples[0].values[0]).collect();
        assert_eq!(values, [3, 300, 2, 200]);
        let names = profiles.iter().map(|profile| profile.sample_type.as_ref().unwrap().kind as usize);
        let names: Vec<&str> = names.map(|name| &*tables.texts[name]).collect();
        assert_eq!(names, VALUE_TYPES.map(|(name, _)| name));
        assert!(
            profiles.iter().all(|profile| profile.profile_id.len() == 16 && profile.duration_nano == 60_000_000_000)
        );
        assert_ne!(profiles[0].profile_id, profiles[1].profile_id);
    }
}
