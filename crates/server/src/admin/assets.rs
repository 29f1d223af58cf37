//! The files of the admin page: one HTML document, style sheets and JavaScript modules. They are
//! embedded in the program. The report of the lab (`larder bench all`) uses the same chart library.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::headers::HARDENED;
use super::state::AdminState;

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asset {
    pub(super) path: &'static str,
    kind: &'static str,
    pub(super) text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Creates the `Asset` of a JavaScript module of the page. `$name` is the name of its file.
macro_rules! module {
    ($name:literal) => {
        Asset {
            path: concat!("/script/", $name),
            kind: SCRIPT,
            text: include_str!(concat!("page/script/", $name)),
        }
    };
}

pub(super) static ASSETS: &[Asset] = &[
    Asset { path: "/", kind: "text/html; charset=utf-8", text: include_str!("page/page.html") },
    Asset { path: "/page.css", kind: STYLE, text: include_str!("page/page.css") },
    Asset {
        path: "/uplot.css",
        kind: STYLE,
        text: include_str!("../../../../assets/uplot/uPlot.min.css"),
    },
    Asset {
        path: "/uplot.js",
        kind: SCRIPT,
        // The licence of uPlot must be part of every copy.
        text: concat!(
            "/*!\n",
            include_str!("../../../../assets/uplot/LICENSE"),
            "*/\n",
            include_str!("../../../../assets/uplot/uPlot.iife.min.js")
        ),
    },
    module!("bars.js"),
    module!("chart.js"),
    module!("choice.js"),
    module!("cleaner.js"),
    module!("clients.js"),
    module!("connection.js"),
    module!("console.js"),
    module!("drain.js"),
    module!("durability.js"),
    module!("elements.js"),
    module!("format.js"),
    module!("header.js"),
    module!("heat.js"),
    module!("history.js"),
    module!("item.js"),
    module!("keys.js"),
    module!("lab.js"),
    module!("limits.js"),
    module!("main.js"),
    module!("model.js"),
    module!("now.js"),
    module!("question.js"),
    module!("refused.js"),
    module!("rows.js"),
    module!("series.js"),
    module!("statistics.js"),
    module!("tiers.js"),
    module!("token.js"),
    module!("trial.js"),
];

/// Returns the routes of all files.
pub(super) fn router() -> Router<Arc<AdminState>> {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(move || async move { reply(asset) }))
    })
}

fn reply(asset: &Asset) -> Response {
    (HARDENED, [(header::CONTENT_TYPE, asset.kind)], asset.text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::admin::series::SERIES;

    fn named(path: &str) -> &'static Asset {
        ASSETS.iter().find(|asset| asset.path == path).expect(path)
    }

    /// For each `word` in `text`, returns what follows it up to the next double quote.
    fn quoted<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(word).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn the_document_has_no_script_and_no_style_inside() {
        let page = named("/").text;
        for (at, _) in page.match_indices("<script") {
            let (tag, rest) = page[at..].split_once('>').unwrap();
            assert!(tag.contains(" src=\"") && rest.starts_with("</script>"), "{tag}");
        }
        assert!(!page.contains("<style") && !page.contains(" style="));
        let handler = page.split_whitespace().find(|word| word.starts_with("on"));
        assert_eq!(handler.filter(|word| word.contains('=')), None);
        assert!(!page.contains("javascript:") && !page.contains("//"), "it loads from elsewhere");
        for path in quoted(page, "src=\"").chain(quoted(page, "rel=\"stylesheet\" href=\"")) {
            named(&format!("/{path}"));
        }
    }

    #[test]
    fn every_module_is_served_and_loads_only_its_neighbours() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/page/script");
        let files = std::fs::read_dir(folder).unwrap();
        let files: BTreeSet<String> =
            files.map(|file| format!("/script/{}", file.unwrap().file_name().display())).collect();
        let modules = ASSETS.iter().filter(|asset| asset.path.starts_with("/script/"));
        let served: BTreeSet<String> = modules.clone().map(|asset| asset.path.to_owned()).collect();
        assert_eq!(files, served);
        for module in modules {
            for path in quoted(module.text, " from \"") {
                named(&path.replace("./", "/script/"));
            }
            // Scripts may insert keys and values into the document only as text. These words would
            // insert HTML or execute code.
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!module.text.contains(word), "{}: {word}", module.path);
            }
            // The XML namespace of SVG looks like a URL, but nothing is fetched from it.
            let text = module.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:") && !text.contains("https:"), "{}", module.path);
        }
    }

    #[test]
    fn the_server_has_every_series_that_the_page_draws() {
        let names: BTreeSet<&str> = SERIES.iter().map(|series| series.name).collect();
        let charts = named("/script/series.js").text;
        let now = named("/script/now.js").text;
        let drawn = quoted(charts, "{ name: \"").chain(quoted(now, "value(\""));
        let drawn: BTreeSet<&str> = drawn.collect();
        assert!(drawn.len() > 15 && drawn.is_subset(&names), "{drawn:?}");
    }

    #[test]
    fn the_chart_library_has_its_licence() {
        assert!(named("/uplot.js").text.contains("Permission is hereby granted"));
    }
}
