//! Reads a page back, for `--verify` and for tests that compare it with the reports.

use data_encoding::BASE64;
use flate2::read::ZlibDecoder;
use std::collections::BTreeMap;
use std::io::Read;

/// Maximum number of unpacked bytes: twice what the writer's limits allow.
const MOST: u64 = 512 << 20;

/// The content of a page.
#[derive(Debug, Default)]
pub struct Held {
    pub page: serde_json::Value,
    pub strings: Vec<String>,
    /// The packed columns by name.
    pub columns: BTreeMap<String, Vec<u64>>,
}

/// Reads a page; returns `None` when the file is not one.
pub fn read(file: &str) -> Option<Held> {
    let page: serde_json::Value = serde_json::from_str(element(file, "data")?).ok()?;
    let strings = serde_json::from_slice(&unpacked(element(file, "strings")?)?).ok()?;
    let bytes = unpacked(element(file, "columns")?)?;
    let mut columns = BTreeMap::new();
    let mut rest = bytes.iter();
    for entry in page.get("columns")?.as_array()? {
        let name = entry.get(0)?.as_str()?.to_string();
        let count = entry.get(1)?.as_u64()?;
        let values = (0..count).map(|_| number(&mut rest)).collect::<Option<Vec<u64>>>()?;
        columns.insert(name, values);
    }
    Some(Held { page, strings, columns })
}

/// Returns the text of the script element with an id.
fn element<'a>(file: &'a str, id: &str) -> Option<&'a str> {
    let (_, from) = file.split_once(&format!(" id=\"{id}\">"))?;
    from.split_once("</script>").map(|(text, _)| text)
}

fn number<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.next()?;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}

fn unpacked(text: &str) -> Option<Vec<u8>> {
    let bytes = BASE64.decode(text.as_bytes()).ok()?;
    let mut plain = Vec::new();
    ZlibDecoder::new(&bytes[..]).take(MOST).read_to_end(&mut plain).ok()?;
    Some(plain)
}
