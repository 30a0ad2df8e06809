use super::*;
use std::io::Write;

const INNER: &[u8] = b"MTRC\x01\0\0\0\0\0\0\0 and more of it, and more of it, and more of it";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a vector takes all")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 3).expect("a vector takes all")
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let info = lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(bytes).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

fn unpacked(bytes: Vec<u8>) -> Result<OpenedFile, Error> {
    unpack("x".into(), bytes, Limit::DEFAULT)
}

#[test]
fn every_compression_is_removed_even_several_times() {
    let twice = gzip(&zstd(&lz4(INNER)));
    for (packed, count) in [(INNER.to_vec(), 0), (gzip(INNER), 1), (zstd(INNER), 1), (lz4(INNER), 1), (twice, 3)] {
        let opened = unpacked(packed).expect("a complete file");
        assert_eq!((opened.bytes.as_slice(), opened.format), (INNER, Some(Format::Mtrc)));
        assert_eq!((opened.compression.len(), opened.damage), (count, None));
    }
}

#[test]
fn concatenated_frames_are_one_file() {
    for pack in [gzip, zstd, lz4] {
        let packed = [pack(INNER), pack(b""), pack(&vec![7; 1 << 20]), pack(b"end")].concat();
        let opened = unpacked(packed).expect("a complete file");
        assert_eq!(opened.bytes.len(), INNER.len() + (1 << 20) + 3);
        assert!(opened.bytes.ends_with(b"\x07end") && opened.damage.is_none());
    }
}

#[test]
fn truncated_file_is_readable_to_the_damage() {
    // Random bytes do not compress, so some are decoded before the end.
    let mut state = 1u32;
    let noise: Vec<u8> = (0..300_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    for pack in [gzip, zstd, lz4] {
        let packed = pack(&noise);
        for end in (0..packed.len()).step_by(9_973) {
            match unpacked(packed[..end].to_vec()) {
                Ok(opened) if opened.compression.is_empty() => assert!(end < 4),
                Ok(opened) => {
                    assert!(opened.damage.is_some(), "{end}");
                    assert!(noise.starts_with(&opened.bytes));
                }
                Err(Error::Damaged { .. }) => assert!(end < 140_000, "{end}"),
                Err(error) => panic!("{end}: {error}"),
            }
        }
        assert!(unpacked(packed[..packed.len() - 1].to_vec()).expect("a nearly complete file").bytes.len() > 150_000);
    }
}

#[test]
fn flipped_bytes_never_panic() {
    for pack in [gzip, zstd, lz4] {
        let mut packed = pack(&INNER.repeat(40));
        for index in 0..packed.len() {
            for bits in [1, 0x80, 0xff] {
                packed[index] ^= bits;
                let _ = unpack("x".into(), packed.clone(), Limit { floor: 1 << 20, ratio: 10 });
                packed[index] ^= bits;
            }
        }
    }
}

#[test]
fn decompression_bomb_is_rejected_by_default() {
    let zeros = vec![0; 8 << 20];
    let tight = Limit { floor: 4096, ratio: 20 };
    for pack in [gzip, zstd, lz4] {
        let packed = pack(&zeros);
        let error = unpack("bomb".into(), packed.clone(), tight).expect_err("too long");
        assert!(matches!(error, Error::TooLarge { .. }) && error.to_string().contains("bomb"), "{error}");
        assert_eq!(
            unpack("x".into(), packed, Limit { floor: u64::MAX, ratio: 0 }).expect("no limit").bytes.len(),
            zeros.len()
        );
        let twice = pack(&pack(&zeros));
        assert!(unpack("x".into(), twice, tight).is_err());
    }
}

#[test]
fn files_are_opened_and_directories_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.gz");
    std::fs::write(&path, gzip(INNER)).expect("a file");
    let opened = open(&path).expect("a complete file");
    assert_eq!((opened.bytes.as_slice(), opened.name.as_str()), (INNER, path.to_str().expect("text")));
    assert!(matches!(open(folder.path()), Err(Error::Directory(_))));
    assert!(matches!(open(&folder.path().join("none")), Err(Error::Io { .. })));
    std::fs::write(&path, b"").expect("a file");
    assert_eq!(open(&path).expect("empty").format, None);
}
