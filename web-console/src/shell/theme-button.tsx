import { MoonIcon, SunIcon, SystemThemeIcon } from '../ui/icons';
import { nextTheme, setTheme, type Theme, useTheme } from '../ui/theme';

export function ThemeButton() {
  const theme = useTheme();
  const label = `Colours: ${theme}. Switch to ${nextTheme(theme)}.`;
  return (
    <button className="button plain icon" type="button" title={label} onClick={() => setTheme(nextTheme(theme))}>
      <ThemeIcon theme={theme} />
      <span className="visually-hidden">{label}</span>
    </button>
  );
}

function ThemeIcon({ theme }: { theme: Theme }) {
  switch (theme) {
    case 'system':
      return <SystemThemeIcon />;
    case 'light':
      return <SunIcon />;
    case 'dark':
      return <MoonIcon />;
  }
}
