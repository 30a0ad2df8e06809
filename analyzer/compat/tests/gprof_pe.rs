//! Windows programs: listings of `heaptape gprof` beside those of GNU gprof 2.40.
//! `tests/golden/gmon/pe/README.md` tells where the files come from.

use flate2::read::GzDecoder;
use heaptape_compat::gprof::{self, Completeness, Options};
use std::io::Read;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gmon/pe")
}

fn unpacked(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(folder().join(name)).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

fn run(arguments: &[&str]) -> (String, String, Result<Completeness, String>) {
    let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let options = Options::parse(&arguments).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let done = gprof::run(&options, &mut out, &mut err);
    let done = done.map_err(|failure| heaptape_analyzer::text::with_causes(&failure));
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), done)
}

#[test]
fn listings_of_windows_programs_equal_gprofs() {
    let temporary = tempfile::tempdir().unwrap();
    let mut compared = 0;
    let mut differ = Vec::new();
    for program in ["calls64", "calls32", "lines32"] {
        let image = temporary.path().join(program);
        std::fs::write(&image, unpacked(&format!("{program}.exe.gz"))).unwrap();
        let gmon = folder().join(format!("{program}.gmon"));
        for entry in std::fs::read_dir(folder()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(options) = name.strip_prefix(program).and_then(|rest| rest.strip_suffix(".txt.gz")) else {
                continue;
            };
            let mut arguments: Vec<&str> = options.split('.').filter(|word| !word.is_empty()).collect();
            arguments.extend([image.to_str().unwrap(), gmon.to_str().unwrap()]);
            let (ours, err, done) = run(&arguments);
            if ours.as_bytes() != unpacked(&name) {
                differ.push(format!("{name}: {done:?} {err}"));
            }
            compared += 1;
        }
    }
    assert!(differ.is_empty(), "{} of {compared}: {}", differ.len(), differ.join("\n"));
    assert!(compared >= 33, "only {compared} listings");
}

#[test]
fn damaged_windows_programs_are_read_to_an_end() {
    let whole = unpacked("calls32.exe.gz");
    let temporary = tempfile::tempdir().unwrap();
    let image = temporary.path().join("image");
    let gmon = folder().join("calls32.gmon");
    let check = |bytes: &[u8]| {
        std::fs::write(&image, bytes).unwrap();
        let _ = run(&["-b", "-l", "-z", image.to_str().unwrap(), gmon.to_str().unwrap()]);
    };
    for length in (0..1024).step_by(7).chain((1024..whole.len()).step_by(4099)) {
        check(&whole[..length]);
    }
    let mut random = 88_172_645_463_325_252u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 8) as usize % below
    };
    let symbols = u32::from_le_bytes(whole[0x80 + 12..0x80 + 16].try_into().unwrap()) as usize;
    for round in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..20 {
            // The headers, or the table of symbols.
            let (start, length) = if round % 2 == 0 { (0, 1024) } else { (symbols, whole.len() - symbols) };
            bytes[start + next(length)] = next(256) as u8;
        }
        check(&bytes);
    }
}
