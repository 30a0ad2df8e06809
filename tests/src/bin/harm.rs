//! Looks for harm: `harm [SECONDS] [SEED]` runs generated programs bare and recorded, from a seed
//! on (the clock's, if none is given); `harm replay STEPS` runs one in all ways; `harm show SEED`
//! prints one. `HARM_LINKED` is the name of programs that are linked otherwise ([`Linkage`]).
#![forbid(unsafe_code)]

use heaptape_tests::harm::{Case, Hunt, Linkage, Summary, generate};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|word| word.parse::<u64>().ok());
    let hunt = || Hunt::linked(Linkage::named(&std::env::var("HARM_LINKED").unwrap_or_default()));
    let mut summary = Summary::default();
    match arguments.first().map(String::as_str) {
        Some("show") => {
            println!("{}", generate(number(1).unwrap_or(0)));
            return ExitCode::SUCCESS;
        }
        Some("replay") => match Case::parse(&arguments[1..].join(" ")) {
            Ok(case) => hunt().replay(&case, &mut summary),
            Err(error) => {
                eprintln!("harm: {error}");
                return ExitCode::from(2);
            }
        },
        _ => {
            let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let (seconds, seed) = (number(0).unwrap_or(60), number(1).unwrap_or(clock));
            println!("{seconds} s from seed {seed}");
            hunt().most(100).run(seed, u64::MAX, Duration::from_secs(seconds), &mut summary);
        }
    }
    if std::env::var_os("HARM_UNSTEADY").is_some() {
        summary.unsteady.iter().for_each(|(seed, why)| println!("seed {seed} is not deterministic: {why}"));
    }
    println!("{summary}");
    ExitCode::from(u8::from(!summary.found.is_empty()))
}
