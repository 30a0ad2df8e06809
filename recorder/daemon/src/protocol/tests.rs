use super::*;
use serde_json::json;

fn answer(line: &str, request: &str) -> Response {
    let request = Request::read(request.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}"));
    Response::read(&request, value).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The lines that `ctl` and `top` of version 0.1.0 send. They must not change.
#[test]
fn requests_have_the_lines_of_the_first_version() {
    let all = Which::default;
    for (request, expected) in [
        (Request::Status, r#"{"word":"status"}"#),
        (Request::List, r#"{"word":"list"}"#),
        (
            Request::Show { which: Which("redis-*".into()), sites: 50 },
            r#"{"sites":50,"which":"redis-*","word":"show"}"#,
        ),
        (
            Request::Mode { which: Which("4711".into()), mode: "trace,overflow=wait:2s".parse().unwrap_or_default() },
            r#"{"mode":"trace,overflow=wait:2s","which":"4711","word":"mode"}"#,
        ),
        (
            Request::Snapshot { which: all(), leaves_flights: false, references: false },
            r#"{"which":"all","word":"snapshot"}"#,
        ),
        (Request::Attach { pid: 4711, mode: None }, r#"{"pid":4711,"word":"attach"}"#),
        (Request::Attach { pid: 4711, mode: "trace".parse().ok() }, r#"{"mode":"trace","pid":4711,"word":"attach"}"#),
        (Request::Detach { which: all() }, r#"{"which":"all","word":"detach"}"#),
        (Request::Epoch, r#"{"word":"epoch"}"#),
        (Request::Mark { name: "deploy-42".into() }, r#"{"name":"deploy-42","word":"mark"}"#),
        (Request::Rotate { which: all() }, r#"{"which":"all","word":"rotate"}"#),
        (Request::Flush, r#"{"word":"flush"}"#),
        (Request::Metrics, r#"{"word":"metrics"}"#),
        (Request::Reload, r#"{"word":"reload"}"#),
        (Request::Stop, r#"{"word":"stop"}"#),
    ] {
        let written = line(&request).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(String::from_utf8_lossy(&written), expected);
        assert!(COMMANDS.iter().any(|word| expected.contains(&format!("\"word\":\"{word}\""))), "{expected}");
        assert_eq!(Request::read(expected.as_bytes()), Ok(request));
    }
}

#[test]
fn missing_fields_have_defaults_and_unknown_fields_are_ignored() {
    let read = |line: &str| Request::read(line.as_bytes());
    assert_eq!(read(r#"{"word":"show"}"#), Ok(Request::Show { which: Which("all".into()), sites: 20 }));
    let snapshot = |leaves_flights| Request::Snapshot { which: Which("all".into()), leaves_flights, references: false };
    assert_eq!(read(r#"{"word":"snapshot","later":1}"#), Ok(snapshot(false)));
    assert_eq!(read(r#"{"word":"snapshot","leaves_flights":true}"#), Ok(snapshot(true)));
    assert_eq!(read(r#"{"word":"flush","which":7}"#), Ok(Request::Flush));
}

#[test]
fn invalid_requests_are_refused_with_what_to_do() {
    let commands = "must be one of status, list, show, mode, snapshot, attach, detach, epoch, mark, rotate, flush, metrics, reload, stop";
    for (line, expected) in [
        (r#"{"word":"dance"}"#, format!("unknown command 'dance': {commands}")),
        ("{}", format!("unknown command '': {commands}")),
        ("[]", format!("unknown command '': {commands}")),
        ("7", format!("unknown command '': {commands}")),
        (r#"{"word":7}"#, format!("unknown command '': {commands}")),
        (r#"{"word":"mode"}"#, "invalid request 'mode': missing field `mode`".into()),
        (
            r#"{"mode":"on","word":"mode"}"#,
            "invalid request 'mode': invalid mode 'on': must be off, profile, trace or flight, then :512KiB or :2%"
                .into(),
        ),
        ("nonsense", "invalid request: expected ident at line 1 column 2".into()),
    ] {
        assert_eq!(Request::read(line.as_bytes()), Err(expected), "{line}");
    }
    let number = Request::read(br#"{"word":"mode","which":4711,"mode":"off"}"#);
    assert!(number.is_err_and(|error| error.starts_with("invalid request 'mode': invalid type: integer `4711`")));
}

/// Answers of the daemon of version 0.1.0, as they were on its socket. They are read and written
/// without a change.
#[test]
fn answers_have_the_lines_of_the_first_version() {
    for (request, expected) in [
        (
            r#"{"word":"status"}"#,
            r#"{"budgets_hit":{"starts":3},"modes":{"flight":0,"off":0,"profile":0,"trace":1},"own":{"accepted_total":79.0,"cpu_seconds_total":0.704648,"disk_bytes":0.0},"pid":32635,"processes":1,"seconds":4,"socket":"d/run/socket","state":"d/state","version":"0.1.0"}"#,
        ),
        (
            r#"{"word":"list"}"#,
            r#"[{"allocs":5453,"allocs_a_second":5453,"bytes":9160235,"bytes_a_second":9160235,"cgroup":"/","events_a_second":7002,"exe":"/usr/bin/python3.11","folder":"d/state/0/202611221357/32651.python3.2","frees":1549,"growth":-4076154,"growth_seconds":1,"held":null,"interval":0,"label":"web","live_blocks":3456,"live_bytes":4076154,"live_since_unix_ns":null,"lost":0,"lost_a_second":0,"mode":"trace","name":"python3","overflow":"drop","peak_bytes":4076154,"pid":32651,"recorded":7002,"sampled_out":0,"seconds":1,"sites":8255,"sites_growing":0,"threads":1,"uid":0},{"exe":"/usr/bin/nc","label":"","mode":"stream","name":"nc","pid":7,"received":4096,"seconds":2,"uid":1000}]"#,
        ),
        (
            r#"{"word":"show"}"#,
            r#"{"allocs":5453,"allocs_a_second":0,"bytes":9160235,"bytes_a_second":0,"call_sites":[{"allocs":2000,"bytes":2066000,"growth":null,"growth_seconds":0,"live_blocks":2000,"live_bytes":2066000,"site":8252,"stack":[{"address":139705236257595,"build_id":"49daf84e","code":null,"module":"/usr/lib/libpython3.11.so.1.0","offset":1768251},{"address":5,"build_id":null,"code":"py::f","module":null,"offset":null}]}],"cgroup":"/","events_a_second":0,"exe":"/usr/bin/python3.11","folder":"d/state/0/202611221357/32651.python3","frees":1549,"growth":0,"growth_seconds":60,"held":"cpu","interval":65536,"label":"","live_blocks":3456,"live_bytes":4076154,"live_since_unix_ns":1795355838000000000,"lost":0,"lost_a_second":0,"mode":"profile:2%","name":"python3","overflow":"wait:2s","peak_bytes":4076154,"pid":32651,"recorded":7002,"sampled_out":0,"seconds":1,"sites":8255,"sites_growing":0,"threads":1,"uid":0}"#,
        ),
        (r#"{"word":"metrics"}"#, r##""# HELP heaptape_up One\n""##),
        (r#"{"mode":"profile:2%","word":"mode"}"#, r#"{"mode":"profile:2%","processes":1}"#),
        (r#"{"word":"snapshot"}"#, r#"{"processes":1}"#),
        (
            r#"{"pid":7,"word":"attach"}"#,
            r#"{"folder":"d/7.sh","functions":26,"mode":"profile","name":"sh","pid":7,"stop_us":810}"#,
        ),
        (r#"{"which":"7","word":"detach"}"#, r#"{"processes":1,"remains":[{"pid":7,"why":"a thread"}],"stop_us":810}"#),
        (r#"{"word":"rotate"}"#, r#"{"processes":0}"#),
        (r#"{"word":"flush"}"#, r#"{"processes":1}"#),
        (r#"{"word":"epoch"}"#, r#"{"epochs":1}"#),
        (
            r#"{"word":"reload"}"#,
            r#"{"changed":{"mode":"profile is now trace"},"needs_restart":{"starts":"200 is now 300"}}"#,
        ),
        (r#"{"word":"stop"}"#, r#"{"stopped":true}"#),
        (r#"{"which":"1","word":"snapshot"}"#, r#"{"error":"no recorded process matches '1'"}"#),
    ] {
        let read = answer(expected, request);
        let written = line(&read).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(String::from_utf8_lossy(&written), expected);
    }
}

#[test]
fn answers_of_older_daemons_are_read() {
    let Response::List(entries) = answer(r#"[{"pid":7,"live_bytes":5,"held":null}]"#, r#"{"word":"list"}"#) else {
        panic!("a list was expected")
    };
    assert_eq!(entries, [Entry::Process(Box::new(Process { pid: 7, live_bytes: 5, ..Process::default() }))]);
    let wrong = Response::read(&Request::Epoch, json!({ "processes": 1 }));
    assert!(wrong.is_err());
}
