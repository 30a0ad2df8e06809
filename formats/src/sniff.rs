//! Tells formats apart by content: every format is asked in turn and answers yes, no or need more bytes.

use crate::{Flavour, Format, dcpi, dhat, heaptrack, massif, pprof, tape};

/// What a format says about the first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// They are mine.
    Yes,
    /// Nothing in them speaks against me, and there is no mark that could speak for me: taken if nobody says yes.
    Weak,
    /// They are not.
    No,
    /// So far they may be: not enough bytes to tell.
    More,
}

/// What all formats together say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is this one.
    Known(Format),
    /// It may be this one, a format without a mark; no other fits.
    Weak(Format),
    /// It is none of ours.
    Unknown,
    /// More bytes are needed.
    More,
}

/// One format's answer for each prefix of a file.
type Ask = fn(&[u8]) -> Answer;

/// THE list: a new format is a line here. The order matters only among weak answers.
const FORMATS: [(Format, Ask); 10] = [
    (Format::Tape, |bytes| begins_with(bytes, &tape::FILE_MAGIC)),
    (Format::Mtrc, |bytes| begins_with(bytes, b"MTRC")),
    (Format::Mptl, |bytes| begins_with(bytes, b"MPTL")),
    (Format::Dhat, dhat::layout::sniff),
    (Format::Heaptrack, heaptrack::sniff),
    (Format::Massif, massif::sniff),
    (Format::Dcpi, dcpi::sniff),
    (Format::Recording, recording),
    (Format::Pprof, pprof::sniff),
    (Format::Gmon, gmon),
];

/// Asks every format about the first bytes of a file. Once it has not said [`Verdict::More`], it says the same for every
/// longer prefix, except that [`Verdict::Weak`] may still become unknown.
pub fn sniff(prefix: &[u8]) -> Verdict {
    let mut verdict = Verdict::Unknown;
    for (format, ask) in FORMATS {
        match ask(prefix) {
            Answer::Yes => return Verdict::Known(format),
            Answer::More => verdict = Verdict::More,
            Answer::Weak if verdict == Verdict::Unknown => verdict = Verdict::Weak(format),
            Answer::Weak | Answer::No => {}
        }
    }
    verdict
}

/// The format of a whole file. One that is too short for any format to know it again has none.
pub fn format(bytes: &[u8]) -> Option<Format> {
    match sniff(bytes) {
        Verdict::Known(format) | Verdict::Weak(format) => Some(format),
        Verdict::Unknown | Verdict::More => None,
    }
}

fn begins_with(bytes: &[u8], magic: &[u8]) -> Answer {
    if bytes.starts_with(magic) {
        Answer::Yes
    } else if magic.starts_with(bytes) {
        Answer::More
    } else {
        Answer::No
    }
}

/// An object whose first member is `"format": "heaptape recording"`, with any blanks between.
fn recording(bytes: &[u8]) -> Answer {
    let mut rest = bytes;
    for token in [&b"{"[..], b"\"format\"", b":", b"\"heaptape recording\""] {
        rest = rest.trim_ascii_start();
        match begins_with(rest, token) {
            Answer::Yes => rest = &rest[token.len()..],
            // WHY: blanks without end are no beginning of a file of ours, and must not ask for more for ever.
            Answer::More if bytes.len() > 4096 => return Answer::No,
            answer => return answer,
        }
    }
    Answer::Yes
}

/// The magic word, or, without any mark, what the first histogram of a BSD file begins with in one of the four flavours.
fn gmon(bytes: &[u8]) -> Answer {
    match begins_with(bytes, b"gmon") {
        Answer::No => {}
        answer => return answer,
    }
    let answers = Flavour::ALL.map(|flavour| bsd_histogram(bytes, flavour));
    let any = |answer| answers.contains(&answer);
    if any(Answer::Weak) {
        Answer::Weak
    } else if any(Answer::More) {
        Answer::More
    } else {
        Answer::No
    }
}

/// Lowest and highest address, then the bytes of header and bins together: two bytes a bin, at least two of text a bin.
fn bsd_histogram(bytes: &[u8], flavour: Flavour) -> Answer {
    let word = usize::from(flavour.word);
    let Some(fields) = bytes.get(..2 * word + 4) else { return Answer::More };
    let (low, high) = (flavour.number(&fields[..word]), flavour.number(&fields[word..2 * word]));
    let size = flavour.number(&fields[2 * word..]);
    let header = fields.len() as u64;
    let Some(text) = high.checked_sub(low).filter(|&text| text > 0) else { return Answer::No };
    // 64: the longest header and a bin's rounding.
    let is_text = fields.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    let fits = !is_text && low > 0 && size > header && size - header <= text.saturating_add(64) && text / 256 <= size;
    if fits { Answer::Weak } else { Answer::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(bytes: &[u8]) -> Verdict {
        let mut before = Verdict::More;
        for end in 0..=bytes.len() {
            let verdict = sniff(&bytes[..end]);
            match before {
                Verdict::More | Verdict::Weak(_) => {}
                _ => assert_eq!(verdict, before, "changed its mind at {end}"),
            }
            before = verdict;
        }
        before
    }

    #[test]
    fn each_is_known_by_its_mark() {
        assert_eq!(settled(b"MTRC\x01\0\0\0\0\0\0\0"), Verdict::Known(Format::Mtrc));
        assert_eq!(settled(b"MPTL\x01\0\0\0"), Verdict::Known(Format::Mptl));
        assert_eq!(settled(b"HEAPTAPE\x01\0\0\0"), Verdict::Known(Format::Tape));
        assert_eq!(settled(b"gmon\x01\0\0\0"), Verdict::Known(Format::Gmon));
        assert_eq!(settled(b"x y\nevent e\nversion \t pdb-1.01\n"), Verdict::Known(Format::Dcpi));
        assert_eq!(settled(b"{\n  \"format\" : \"heaptape recording\"}"), Verdict::Known(Format::Recording));
        assert_eq!(settled(b"v 10400 3\nX ./t\n"), Verdict::Known(Format::Heaptrack));
        assert_eq!(settled(b"{\"dhatFileVersion\":2\n,"), Verdict::Known(Format::Dhat));
        assert_eq!(settled(b"desc: (none)\ncmd: ./t\n"), Verdict::Known(Format::Massif));
        let pprof = [&b"\x0a\x04\x08\x01\x10\x02"[..], b"\x0a\x04\x08\x03\x10\x04", &[0x32; 20]].concat();
        assert_eq!(settled(&pprof), Verdict::Weak(Format::Pprof));
        let written = crate::recording::Recording { format: "heaptape recording".into(), ..Default::default() };
        let written = serde_json::to_vec_pretty(&written).expect("plain fields");
        assert_eq!(settled(&written), Verdict::Known(Format::Recording));
    }

    #[test]
    fn others_are_unknown() {
        for other in [
            &b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0"[..],
            b"{\"version\":1,\"nodes\":[]}",
            b"\n\nversion pdb-0.07\nimage 1\n",
        ] {
            assert_eq!(settled(other), Verdict::Unknown, "{other:?}");
        }
        assert_eq!(sniff(b""), Verdict::More);
        assert_eq!(format(b""), None);
        assert_eq!(format(b"MT"), None);
        assert_eq!(sniff(&[b' '; 5000]), Verdict::Unknown);
        assert_eq!(sniff(&b"word value\n".repeat(10_000)), Verdict::Unknown);
        assert_eq!(sniff(&[0; 64]), Verdict::Unknown);
        assert_eq!(sniff(&[0xff; 64]), Verdict::Unknown);
    }

    #[test]
    fn a_histogram_without_magic_is_weak() {
        for flavour in Flavour::ALL {
            let mut bytes = Vec::new();
            flavour.put_word(&mut bytes, 0x40_11b0);
            flavour.put_word(&mut bytes, 0x40_1584);
            flavour.put(&mut bytes, 245 * 2 + 2 * u64::from(flavour.word) + 4, 4);
            bytes.resize(600, 0);
            assert_eq!(settled(&bytes), Verdict::Weak(Format::Gmon), "{}", flavour.name());
        }
    }
}
