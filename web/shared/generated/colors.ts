// Written by `make web-types` from src/torcheer/_text/colors.py. Do not edit.

export const BOTH_SIGNS = [
  "#083572",
  "#075DA0",
  "#3D8EC5",
  "#8EBFDF",
  "#E4E6E7",
  "#E4A988",
  "#CD6439",
  "#9F361B",
  "#6A211B"
] as const;

export const NEVER_NEGATIVE = [
  "#190D32",
  "#2C215D",
  "#30427D",
  "#266791",
  "#2A8C9B",
  "#3EB094",
  "#7BCE80",
  "#BDE566",
  "#FAF65E"
] as const;

export const NONFINITE = "#D400FF" as const;

export const CATEGORY_TITLES = {
  "input": "input",
  "output": "output",
  "layer": "layer with weights",
  "attention": "attention",
  "normalisation": "normalisation",
  "activation": "activation",
  "pooling": "pooling",
  "arithmetic": "arithmetic",
  "reduction": "reduction",
  "shape": "shape and indexing",
  "random": "dropout and random",
  "constant": "constant or buffer",
  "opaque": "opaque",
  "failed": "failed"
} as const;

export const THEMES = {
  "light": {
    "name": "light",
    "page": "#F7F8FA",
    "surface": "#FFFFFF",
    "raised": "#FFFFFF",
    "sunken": "#F0F2F5",
    "ink": "#16181D",
    "faint": "#59616C",
    "border": "#D5DAE1",
    "accent": "#0B57D0",
    "accentInk": "#FFFFFF",
    "tint": "#E3EDFC",
    "found": "#8A6508",
    "alarm": "#B3261E",
    "alarmTint": "#FDECEA",
    "nonfinite": "#D400FF",
    "nonfiniteInk": "#C000E8",
    "grid": "#E8E8E4",
    "hatch": "#CFCFC9",
    "dots": "#E3E6EB",
    "edge": "#7A828E",
    "edgeFaint": "#C9CED6",
    "box": "#FFFFFF",
    "boxBorder": "#8A929E",
    "inside": "#FFFFFF",
    "insideOdd": "#F4F6F9",
    "insideBorder": "#C3C9D3",
    "header": "#EDF0F4",
    "headerOdd": "#E5E9EF",
    "into": "#0B7285",
    "outOf": "#B54708",
    "match": "#B8860B",
    "chip": "#E9ECF1",
    "missing": "#FFFFFF",
    "onlyLeft": "#B54708",
    "onlyRight": "#0B57D0",
    "changed": "#8A2BA8",
    "costRamp": [
      "#FFFDE7",
      "#FDE7A5",
      "#F9C46B",
      "#EF9A4D",
      "#D96B3F",
      "#B23A3A",
      "#7A1F3D"
    ],
    "shareRamp": [
      "#F2F3F1",
      "#B9D4E8",
      "#5F9FCB",
      "#1F62A3",
      "#0A2A55"
    ],
    "categories": {
      "input": {
        "fill": "#D6F1E5",
        "accent": "#00724F"
      },
      "output": {
        "fill": "#FFE1C7",
        "accent": "#A84300"
      },
      "layer": {
        "fill": "#DCEAFB",
        "accent": "#1565B8"
      },
      "attention": {
        "fill": "#F9DDEC",
        "accent": "#AD2470"
      },
      "normalisation": {
        "fill": "#E8E2F7",
        "accent": "#6A4FB0"
      },
      "activation": {
        "fill": "#FDF0C4",
        "accent": "#94690A"
      },
      "pooling": {
        "fill": "#D4F0F3",
        "accent": "#0B7285"
      },
      "arithmetic": {
        "fill": "#E9ECF0",
        "accent": "#4B5563"
      },
      "reduction": {
        "fill": "#E2F0D5",
        "accent": "#4A7A10"
      },
      "shape": {
        "fill": "#F7F6F2",
        "accent": "#97958A"
      },
      "random": {
        "fill": "#F4E7DE",
        "accent": "#8D5B3E"
      },
      "constant": {
        "fill": "#EFEFEF",
        "accent": "#7D7D7D"
      },
      "opaque": {
        "fill": "#DEE1E7",
        "accent": "#16181D"
      },
      "failed": {
        "fill": "#FFD9D5",
        "accent": "#C00000"
      }
    }
  },
  "dark": {
    "name": "dark",
    "page": "#15171B",
    "surface": "#1D2025",
    "raised": "#262A31",
    "sunken": "#16181C",
    "ink": "#F0F1F3",
    "faint": "#AEB5BF",
    "border": "#3A4049",
    "accent": "#7CB4FF",
    "accentInk": "#10141B",
    "tint": "#253650",
    "found": "#FFD54A",
    "alarm": "#FF8A82",
    "alarmTint": "#40201F",
    "nonfinite": "#D400FF",
    "nonfiniteInk": "#EA7DFF",
    "grid": "#2A2F37",
    "hatch": "#434A55",
    "dots": "#24272D",
    "edge": "#8D95A1",
    "edgeFaint": "#414750",
    "box": "#282C33",
    "boxBorder": "#89919D",
    "inside": "#1B1E23",
    "insideOdd": "#20242A",
    "insideBorder": "#434A54",
    "header": "#262A31",
    "headerOdd": "#2C3138",
    "into": "#4FD1E0",
    "outOf": "#FFAA66",
    "match": "#FFD54A",
    "chip": "#343A43",
    "missing": "#22252B",
    "onlyLeft": "#FFAA66",
    "onlyRight": "#7CB4FF",
    "changed": "#DE9BF5",
    "costRamp": [
      "#2B2E34",
      "#3F3A4F",
      "#653F63",
      "#95456A",
      "#C55A5C",
      "#EB8B54",
      "#FAD06A"
    ],
    "shareRamp": [
      "#20252C",
      "#1F4A7D",
      "#3F8FC9",
      "#9BD0F5",
      "#F4FAFF"
    ],
    "categories": {
      "input": {
        "fill": "#12493A",
        "accent": "#5FDDB4"
      },
      "output": {
        "fill": "#5E3214",
        "accent": "#FFB077"
      },
      "layer": {
        "fill": "#1B3F66",
        "accent": "#7CC0FA"
      },
      "attention": {
        "fill": "#562543",
        "accent": "#F58ACB"
      },
      "normalisation": {
        "fill": "#3B3160",
        "accent": "#B9A3F2"
      },
      "activation": {
        "fill": "#50420F",
        "accent": "#F3D05A"
      },
      "pooling": {
        "fill": "#124650",
        "accent": "#5FD3E3"
      },
      "arithmetic": {
        "fill": "#363C45",
        "accent": "#A9B2BE"
      },
      "reduction": {
        "fill": "#32481A",
        "accent": "#A9D86E"
      },
      "shape": {
        "fill": "#2B2C2E",
        "accent": "#8E8D86"
      },
      "random": {
        "fill": "#4A3628",
        "accent": "#DBA98A"
      },
      "constant": {
        "fill": "#353537",
        "accent": "#A0A0A3"
      },
      "opaque": {
        "fill": "#40444D",
        "accent": "#FFFFFF"
      },
      "failed": {
        "fill": "#651818",
        "accent": "#FF8A82"
      }
    }
  }
} as const;

export type Category = keyof typeof CATEGORY_TITLES;
export type ThemeName = keyof typeof THEMES;
export type Theme = (typeof THEMES)[ThemeName];
