//! The readers of profiles: the one of complete files and the one of streams agree.
#![no_main]

use heaptape_formats::{Ending, mptl};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    drop(mptl::dump(bytes, &mut std::io::sink()));
    let profile = mptl::Profile::read(bytes);
    if let Ok((profile, Ending::Complete)) = &profile {
        let mut written = Vec::new();
        profile.write(&mut written);
        assert_eq!(written, bytes);
    }
    if let Ok(validation) = mptl::validate(bytes) {
        let again = mptl::validate(&bytes[..bytes.len().min(validation.bytes as usize)]);
        assert!(again.is_ok_and(|again| again.ending.is_ok()));
        match (validation.ending, &profile) {
            (Ok(Ending::Complete), Err(error)) => assert!(mptl::needs_whole_file(error), "{error}"),
            (ending, Ok((_, Ending::Complete))) => assert_eq!(ending, Ok(Ending::Complete)),
            (Ok(Ending::Complete), Ok((_, ending))) => panic!("complete as a stream, but {ending:?}"),
            _ => {}
        }
    }
});
