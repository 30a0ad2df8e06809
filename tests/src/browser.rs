//! A real browser without a window: Debian's Chromium, controlled through two pipes (its DevTools
//! protocol: JSON, a zero byte after each message). Everything that it complains about is kept:
//! errors and warnings of the console, exceptions, all requests.

use crate::test_env;
use crate::wait::PATIENCE;
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit of a browser in seconds. After it the browser is killed.
const TIME_LIMIT: &str = "120";

pub struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    next: u64,
    /// Errors, warnings, exceptions and requests of the page.
    pub complaints: Vec<String>,
    /// Folder of the profile and the pipes, removed with the value.
    _directory: TempDir,
}

/// Size and color scheme of the window.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Width of the window in pixels.
    pub width: u32,
    /// Height of the window in pixels.
    pub height: u32,
    /// Whether the system prefers dark colors.
    pub dark: bool,
}

impl Browser {
    /// Returns whether a browser is installed. With `HEAPTAPE_BROWSER=1` its absence is a failure.
    pub fn is_there() -> bool {
        let found = test_env::find("chromium").is_some();
        let demanded = std::env::var_os("HEAPTAPE_BROWSER").is_some_and(|value| value != "0");
        assert!(found || !demanded, "no chromium: apt-get install chromium");
        found
    }

    /// Opens a file. `rest` is appended to its address: `#…`.
    pub fn open(file: &Path, rest: &str, screen: Screen) -> Browser {
        let directory = test_env::folder();
        let pipe = |name: &str| {
            let path = directory.path().join(name);
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
            path
        };
        let (input, output) = (pipe("in"), pipe("out"));
        let run = "exec timeout -k 5 \"$1\" chromium --headless=new --no-sandbox --disable-gpu --enable-unsafe-swiftshader --hide-scrollbars --no-first-run \
                   --disable-background-networking --disable-component-update --disable-dev-shm-usage --user-data-dir=\"$2\" \
                   --remote-debugging-pipe about:blank 3<\"$3\" 4>\"$4\"";
        let child = Command::new("bash")
            .args(["-c", run, "bash", TIME_LIMIT])
            .args([directory.path().join("profile"), input.clone(), output.clone()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("bash can be started");
        let to = OpenOptions::new().write(true).open(&input).expect("the browser listens");
        let from = BufReader::new(File::open(&output).expect("the browser speaks"));
        let mut browser =
            Browser { child, to, from, session: None, next: 0, complaints: Vec::new(), _directory: directory };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_string);
        for domain in ["Runtime", "Log", "Page", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        let Screen { width, height, dark } = screen;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        browser.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        browser.call("Emulation.setEmulatedMedia", json!({ "features": [scheme] }));
        let file = file.canonicalize().expect("the page is there");
        browser.call("Page.navigate", json!({ "url": format!("file://{}{rest}", file.display()) }));
        browser
    }

    /// Sends a command and waits for its answer. Complaints of the page are kept meanwhile.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser runs");
        loop {
            let mut answer = Vec::new();
            let read = self.from.read_until(0, &mut answer).expect("the browser answers");
            assert!(read > 0, "the browser ended before it answered {method}");
            answer.pop();
            let answer: Value = serde_json::from_slice(&answer).expect("JSON of the browser");
            if answer["id"] == json!(self.next) {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.keep_complaint(&answer);
        }
    }

    fn keep_complaint(&mut self, message: &Value) {
        let about = &message["params"];
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                ["error", "warning", "assert"].iter().any(|kind| about["type"] == *kind)
            }
            Some("Log.entryAdded") => true,
            Some("Network.requestWillBeSent") => {
                let url = about["request"]["url"].as_str().unwrap_or_default();
                !(url.starts_with("file:///") && about["type"] == "Document" || url.starts_with("data:"))
            }
            _ => false,
        };
        if complaint {
            self.complaints.push(message.to_string());
        }
    }

    /// Returns the value of an expression of the page.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns the value of an expression of the page as text.
    #[track_caller]
    pub fn text(&mut self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or_default().to_string()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn wait(&mut self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        while self.value(expression) != true {
            assert!(Instant::now() < end, "never true: {expression}; complaints: {:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until everything requested so far is drawn.
    pub fn drawn(&mut self) {
        let frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
        self.value(frames);
    }

    /// Drags the mouse from one point of an element to another. Both points are shares of its width
    /// and height.
    pub fn drag(&mut self, element: &str, from: (f64, f64), to: (f64, f64)) {
        let rectangle = format!(
            "(() => {{ const e = document.querySelector({element:?}); e.scrollIntoView({{ behavior: 'instant', block: 'center' }}); const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})()"
        );
        let rectangle: Vec<f64> = serde_json::from_value(self.value(&rectangle)).expect("the element has a rectangle");
        let at = |share: (f64, f64)| (rectangle[0] + rectangle[2] * share.0, rectangle[1] + rectangle[3] * share.1);
        let steps = if from == to { 0 } else { 8 };
        let mut mouse = |kind: &str, (x, y): (f64, f64)| {
            let pressed = u8::from(kind != "mouseReleased");
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": pressed, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        };
        mouse("mousePressed", at(from));
        for step in 1..=steps {
            let share = f64::from(step) / f64::from(steps);
            mouse("mouseMoved", at((from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share)));
        }
        mouse("mouseReleased", at(to));
        self.drawn();
    }

    pub fn press(&mut self, element: &str, point: (f64, f64)) {
        self.drag(element, point, point);
    }

    /// Presses a key: `ArrowDown`, `Enter`, `i`.
    pub fn key(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "code": key, "text": text }));
        }
        self.drawn();
    }

    /// Returns a screenshot of an element, or of the window, as WebP.
    pub fn screenshot(&mut self, element: Option<&str>, quality: u8) -> Vec<u8> {
        self.drawn();
        let mut how = json!({ "format": "webp", "quality": quality });
        if let Some(element) = element {
            let clip = format!(
                "(() => {{ const b = document.querySelector({element:?}).getBoundingClientRect(); return {{ x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height, scale: 1 }}; }})()"
            );
            how["clip"] = self.value(&clip);
            how["captureBeyondViewport"] = json!(true);
        }
        let data = self.call("Page.captureScreenshot", how)["data"].clone();
        BASE64.decode(data.as_str().expect("a screenshot").as_bytes()).expect("base64")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let end = json!({ "id": 0, "method": "Browser.close" }).to_string() + "\0";
        // It may be gone already.
        let _ = self.to.write_all(end.as_bytes());
        let _ = self.child.wait();
    }
}
