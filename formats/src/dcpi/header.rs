//! Parses the header: text lines with the values that the format defines.
//!
//! A required line that is missing, repeated or malformed is an error. Other violations of the
//! grammar are reported as faults, and what the format leaves open as warnings.

use super::Epoch;
use super::layout::{ALIGNMENT, Class, HEADER_LINES, STRIDE_KEY, Syntax, VERSION_PREFIX, index_of, is_space};
use super::lines::{Line, LineIter};
use super::remarks::Remarks;
use crate::{Error, Format, Kind, Result};
use std::borrow::Cow;

/// The version of a file. A number of more than 64 bits is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major version. It determines the layout of the body. Only that of 0 is documented.
    pub major: Option<u64>,
    /// Minor version. It does not affect the body.
    pub minor: Option<u64>,
}

/// The header of a file. Texts are bytes, because a header may contain any byte but a newline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    raw: &'a [u8],
    /// `version`: the version of the format.
    pub version: Version,
    /// `image`: the identity of the program or library, as hexadecimal digits.
    pub image: &'a [u8],
    /// `epoch`: the digits in the file. [`Header::time`] parses them.
    pub epoch: &'a [u8],
    /// `platform`: the name of the machine.
    pub platform: &'a [u8],
    /// `event`: the name of the counted event.
    pub event: &'a [u8],
    /// `period`: the number of events per sample.
    pub period: u64,
    /// `tstart`: the address of the first byte of the text section.
    pub tstart: u64,
    /// `tsize`: the length of the text section in bytes.
    pub tsize: u64,
    /// `cpuspeed`: the clock rate of the CPU in MHz.
    pub cpuspeed: u64,
    /// `cpuamask`: the architecture mask of the Alpha CPU.
    pub cpuamask: Option<u64>,
    /// `cpuimplv`: the implementation version of the Alpha CPU.
    pub cpuimplv: Option<u64>,
    /// `cpucount`: the number of CPUs.
    pub cpucount: Option<u64>,
    /// `path`: the path of the program or library.
    pub path: Option<&'a [u8]>,
    /// The stride, from a line of heaptape.
    pub stride: Option<u32>,
}

impl<'a> Header<'a> {
    /// Reads the header at the start of a file. Adds its remarks to `faults` and `warnings`.
    pub(super) fn read(bytes: &'a [u8], faults: &mut Remarks, warnings: &mut Remarks) -> Result<Header<'a>> {
        let end = terminator_end(bytes)?;
        let raw = &bytes[..end];
        let mut found = [None::<Line<'a>>; HEADER_LINES.len()];
        let mut stride = None;
        let mut last = 0;
        for line in LineIter::new(raw) {
            last = line.offset;
            if line.is_terminator() {
                break;
            }
            check_grammar(line, faults, warnings);
            match index_of(line.word()) {
                Some(index) => keep_first(&mut found[index], line, index, warnings)?,
                None if line.word() == STRIDE_KEY.as_bytes() => stride = stride.or(read_stride(line, warnings)),
                None => {}
            }
        }
        let mut values = Values { found, missing_at: last, warnings };
        Ok(Header {
            raw,
            version: values.version()?,
            image: values.digits("image")?,
            epoch: values.epoch()?,
            platform: values.text("platform")?,
            event: values.text("event")?,
            period: values.number("period")?,
            tstart: values.number("tstart")?,
            tsize: values.number("tsize")?,
            cpuspeed: values.number("cpuspeed")?,
            cpuamask: values.optional("cpuamask"),
            cpuimplv: values.optional("cpuimplv"),
            cpucount: values.optional("cpucount"),
            path: values.line("path").map(|line| line.value()).filter(|path| !path.is_empty()),
            stride,
        })
    }

    /// Returns the length of the header in bytes, including the newline of the terminator.
    pub const fn len(&self) -> usize {
        self.raw.len()
    }

    /// Returns whether the header is empty, which a parsed header never is.
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Returns whether the body begins at a multiple of four, as the format recommends.
    pub const fn is_aligned(&self) -> bool {
        self.raw.len().is_multiple_of(ALIGNMENT)
    }

    /// Returns all lines in the order of the file, including the terminator.
    pub const fn lines(&self) -> LineIter<'a> {
        LineIter::new(self.raw)
    }

    /// Returns the value of the first line that begins with `word`, which may be any word.
    pub fn get(&self, word: &str) -> Option<&'a [u8]> {
        self.lines().find(|line| line.word() == word.as_bytes() && !line.is_terminator()).map(|line| line.value())
    }

    /// Returns the time of the samples, if the digits of `epoch` are a valid date.
    pub fn time(&self) -> Option<Epoch> {
        Epoch::parse(self.epoch)
    }

    /// Returns a value as text without blanks at its end.
    pub fn text(value: &'a [u8]) -> Cow<'a, str> {
        match String::from_utf8_lossy(value) {
            Cow::Borrowed(text) => Cow::Borrowed(text.trim_end()),
            Cow::Owned(text) => Cow::Owned(text.trim_end().to_string()),
        }
    }
}

/// Returns the offset after the terminator.
fn terminator_end(bytes: &[u8]) -> Result<usize> {
    let mut lines = LineIter::new(bytes);
    let (mut known, mut windows) = (false, false);
    for line in &mut lines {
        if line.is_terminator() {
            return Ok(line.offset as usize + line.raw.len() + 1);
        }
        known |= line.class() != Class::Unknown;
        windows |= line.raw == b"samples\r";
    }
    let error = |offset: usize, kind| Error { format: Format::Dcpi, offset: offset as u64, field: "samples", kind };
    let rest = &bytes[lines.at()..];
    known |= HEADER_LINES.iter().any(|word| !rest.is_empty() && word.name.as_bytes().starts_with(rest));
    if windows {
        let text =
            "no line `samples` ends the header: its lines end in CR LF, so a carriage return belongs to the word";
        return Err(error(bytes.len(), Kind::Text(text.into())));
    }
    if !known && index_of(Line { offset: 0, raw: rest }.word()).is_none() && !bytes.is_empty() {
        return Err(Error { field: "version", ..error(0, Kind::Magic) });
    }
    Err(error(bytes.len(), Kind::Truncated))
}

fn remark(line: Line<'_>, field: &'static str, text: &str) -> Error {
    Error { format: Format::Dcpi, offset: line.offset, field, kind: Kind::Text(text.into()) }
}

fn check_grammar(line: Line<'_>, faults: &mut Remarks, warnings: &mut Remarks) {
    let field = index_of(line.word()).map_or("line", |index| HEADER_LINES[index].name);
    if line.raw.is_empty() {
        faults.push(|| remark(line, field, "an empty line in the header"));
    } else if line.word().is_empty() {
        faults.push(|| remark(line, field, "a line that begins with a blank"));
    } else if line.value().is_empty() {
        faults.push(|| remark(line, field, "a line without a value"));
    }
    if !line.raw.is_ascii() {
        warnings.push(|| remark(line, field, "a byte that is not ASCII"));
    }
}

/// Keeps the first line of a kind. A second one is an error if the line is required. The format's
/// description lists `period` as required and as optional, so a second one is a warning only.
fn keep_first<'a>(slot: &mut Option<Line<'a>>, line: Line<'a>, index: usize, warnings: &mut Remarks) -> Result<()> {
    let word = HEADER_LINES[index];
    if slot.is_none() {
        *slot = Some(line);
        return Ok(());
    }
    if word.class == Class::Required && word.name != "period" {
        return Err(remark(line, word.name, "a second line of this kind, where exactly one is due"));
    }
    warnings.push(|| remark(line, word.name, "a second line of this kind: the first counts"));
    Ok(())
}

fn read_stride(line: Line<'_>, warnings: &mut Remarks) -> Option<u32> {
    let stride = decimal(line.value()).ok().and_then(|stride| u32::try_from(stride).ok());
    let stride = stride.filter(|stride| (1..=super::layout::MAX_STRIDE).contains(stride));
    if stride.is_none() {
        warnings.push(|| remark(line, STRIDE_KEY, "not a number from 1 to 4096: passed over"));
    }
    stride
}

struct Values<'a, 'w> {
    found: [Option<Line<'a>>; HEADER_LINES.len()],
    missing_at: u64,
    warnings: &'w mut Remarks,
}

impl<'a> Values<'a, '_> {
    fn line(&self, name: &'static str) -> Option<Line<'a>> {
        self.found[index_of(name.as_bytes())?]
    }

    fn required(&self, name: &'static str) -> Result<Line<'a>> {
        let missing = Line { offset: self.missing_at, raw: b"" };
        self.line(name).ok_or_else(|| remark(missing, name, "this line is required and missing"))
    }

    /// Returns a value without blanks at its end. Blanks after digits are not in the grammar, so
    /// they are a warning.
    fn trimmed(&mut self, line: Line<'a>, name: &'static str) -> &'a [u8] {
        let value = line.value();
        let length = value.iter().rposition(|&byte| !is_space(byte)).map_or(0, |index| index + 1);
        if length < value.len() {
            self.warnings.push(|| remark(line, name, "blanks at the end of the value"));
        }
        &value[..length]
    }

    fn version(&mut self) -> Result<Version> {
        let line = self.required("version")?;
        let parts = self.trimmed(line, "version").strip_prefix(VERSION_PREFIX).and_then(|numbers| {
            let dot = numbers.iter().position(|&byte| byte == b'.')?;
            Some((&numbers[..dot], &numbers[dot + 1..]))
        });
        let number = |digits: &[u8]| match decimal(digits) {
            Ok(value) => Some(Some(value)),
            Err(Malformed::TooLong) => Some(None),
            Err(Malformed::Digit) => None,
        };
        parts
            .and_then(|(major, minor)| Some(Version { major: number(major)?, minor: number(minor)? }))
            .ok_or_else(|| remark(line, "version", "not pdb-MAJOR.MINOR"))
    }

    fn digits(&mut self, name: &'static str) -> Result<&'a [u8]> {
        let line = self.required(name)?;
        let value = self.trimmed(line, name);
        if value.is_empty() || !value.iter().all(u8::is_ascii_hexdigit) {
            return Err(remark(line, name, "not hexadecimal digits"));
        }
        Ok(value)
    }

    fn epoch(&mut self) -> Result<&'a [u8]> {
        let line = self.required("epoch")?;
        let value = self.trimmed(line, "epoch");
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err(remark(line, "epoch", "not digits"));
        }
        if !matches!(value.len(), 10 | 14) {
            self.warnings.push(|| remark(line, "epoch", "neither ten digits (YYMMDDHHMM) nor fourteen"));
        } else if Epoch::parse(value).is_none() {
            self.warnings.push(|| remark(line, "epoch", "a date that cannot be"));
        }
        Ok(value)
    }

    fn text(&mut self, name: &'static str) -> Result<&'a [u8]> {
        let line = self.required(name)?;
        if line.value().is_empty() { Err(remark(line, name, "no value")) } else { Ok(line.value()) }
    }

    fn number(&mut self, name: &'static str) -> Result<u64> {
        let line = self.required(name)?;
        self.parse(line, name)
    }

    fn optional(&mut self, name: &'static str) -> Option<u64> {
        let line = self.line(name)?;
        match self.parse(line, name) {
            Ok(value) => Some(value),
            Err(error) => {
                self.warnings.push(|| error);
                None
            }
        }
    }

    fn parse(&mut self, line: Line<'a>, name: &'static str) -> Result<u64> {
        let value = self.trimmed(line, name);
        let is_hex = HEADER_LINES.iter().any(|word| word.name == name && word.syntax == Syntax::Hex);
        let (parsed, text) =
            if is_hex { (hex(value), "not a hexadecimal number") } else { (decimal(value), "not a decimal number") };
        parsed.map_err(|malformed| match malformed {
            Malformed::TooLong => remark(line, name, "a number of more than 64 bits"),
            Malformed::Digit => remark(line, name, text),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Malformed {
    Digit,
    TooLong,
}

fn decimal(digits: &[u8]) -> std::result::Result<u64, Malformed> {
    number(digits, 10)
}

fn hex(digits: &[u8]) -> std::result::Result<u64, Malformed> {
    number(digits, 16)
}

fn number(digits: &[u8], base: u32) -> std::result::Result<u64, Malformed> {
    if digits.is_empty() || !digits.iter().all(|&digit| char::from(digit).is_digit(base)) {
        return Err(Malformed::Digit);
    }
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = char::from(digit).to_digit(base).ok_or(Malformed::Digit)?;
        let shifted = value.checked_mul(u64::from(base)).ok_or(Malformed::TooLong)?;
        shifted.checked_add(u64::from(digit)).ok_or(Malformed::TooLong)
    })
}
